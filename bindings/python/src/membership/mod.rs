//! `Membership`: this process as a member of a group whose survivors continue, for `c10d_rs.torch`.
//!
//! The state machine is `c10d_membership::Member`; this module connects it to Python. It has no notion of tensors, gloo
//! or steps: Python calls torch, and reports the events.

mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use c10d_membership::{EndReason, Ending, GroupOptions, MemberInput, MemberKey, Reason, Record};
use c10d_socket::ProcessBound;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::Timeout;
use crate::call::{cancel, run};
use crate::cells::Owned;
use crate::errors::raise;
use crate::store::Store;

use self::watch::{Abort, News, Settings, Waited, Watch};

/// A member of a group. One thread calls it; the thread `c10d-membership` waits for the service, and frees the calling
/// thread from collectives of a broken generation.
#[pyclass(frozen, module = "c10d_rs._native")]
#[derive(Debug)]
pub(crate) struct Membership {
    watch: Owned<ProcessBound<Arc<Watch>>>,
}

/// A process of a generation: id, steps done, and rank in the generation before.
type Seat = (u64, u64, Option<u32>);

/// The next action of the program, of one of four kinds.
#[derive(IntoPyObject)]
enum Directive {
    /// `("leave",)`: leave the mesh, then say so.
    Leave((&'static str,)),
    /// `("call", uuid, handles)`: call torch, then say how it ended.
    Call(&'static str, u64, Vec<String>),
    /// `("enter", uuid, rank, source, seats)`: the generation may be used.
    Enter(&'static str, u64, usize, usize, Vec<Seat>),
    /// `("over", class, text)`: the process is no longer a member. Has the reason, and the class of an exception if the
    /// reason is an error.
    Over(&'static str, Option<&'static str>, String),
}

#[pymethods]
impl Membership {
    /// Opens the group, on a separate connection, and starts the thread. `options` are the group's sizes, and its waits
    /// in seconds, which must be the same for all members.
    #[new]
    #[pyo3(signature = (store, group, key_prefix, member, incarnation, options, silence_max))]
    #[expect(clippy::too_many_arguments, reason = "Python passes them")]
    fn new(
        py: Python<'_>,
        store: PyRef<'_, Store>,
        group: String,
        key_prefix: String,
        member: u64,
        incarnation: u64,
        options: BTreeMap<String, f64>,
        silence_max: Timeout,
    ) -> PyResult<Self> {
        let options = group_options(options)?;
        let settings = Settings {
            key: MemberKey::new(member, incarnation),
            silence_max: silence_max.0,
        };
        let service = store.handle.call(py, |store| {
            let service =
                c10d_membership::Membership::connect(store, &group)?.with_cancel(&cancel());
            service.open(&options, &key_prefix)?;
            Ok(service)
        })?;
        let watch = Watch::start(service, settings)?;
        Ok(Self {
            watch: Owned::new("membership", ProcessBound::new(Arc::new(watch))),
        })
    }

    /// Says hello. Torch lists this process under the handle.
    fn join(&self, py: Python<'_>, handle: &str, step: u64) -> PyResult<()> {
        let handle = handle.into();
        self.tell(py, MemberInput::Join { handle, step })
    }

    /// Returns the next action of the program. Waits for it, at most the timeout.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<Directive> {
        let timeout = timeout.map(|Timeout(timeout)| timeout);
        let news = self.wait(py, |watch| watch.wait_for_news(timeout))?;
        Ok(directive(news))
    }

    /// The mesh is left: torch has this handle now, and this many steps are done.
    fn left(&self, py: Python<'_>, handle: &str, step: u64) -> PyResult<()> {
        let handle = handle.into();
        let watch = self.watch.get_here(py)?;
        watch.leave_mesh();
        self.tell(py, MemberInput::Left { handle, step })
    }

    /// Has the thread call this function, once for each mesh, to free the calling thread from a broken one. Otherwise it ends
    /// connections, as gloo has no such function.
    fn free_by(&self, py: Python<'_>, abort: Py<PyAny>) -> PyResult<()> {
        let call = move || {
            // An interpreter that ends has nothing to free.
            let _ = Python::try_attach(|py| {
                if let Err(error) = abort.call0(py) {
                    error.write_unraisable(py, Some(abort.bind(py)));
                }
            });
        };
        self.watch.get_here(py)?.free_by(Abort(Arc::new(call)));
        Ok(())
    }

    /// Torch's call begins: the connections that it makes are the mesh. All members have left the one before, which ends.
    fn call_begins(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.watch.get_here(py)?.call_begins()?)
    }

    /// Torch's call has returned.
    fn called(&self, py: Python<'_>, is_ok: bool) -> PyResult<()> {
        self.watch.get_here(py)?.call_ends(is_ok)?;
        self.tell(py, MemberInput::Called { is_ok })
    }

    /// Reports that torch begins to create a subgroup. Its connections will be closed with the mesh.
    fn subgroup_begins(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.watch.get_here(py)?.subgroup_begins()?)
    }

    /// Torch has made the subgroup, or has failed.
    fn subgroup_ends(&self, py: Python<'_>) -> PyResult<()> {
        Ok(self.watch.get_here(py)?.subgroup_ends()?)
    }

    /// Whether to begin the next step, after this number of steps; if not, `next` returns the reason.
    fn boundary(&self, py: Python<'_>, step: u64) -> PyResult<bool> {
        self.wait(py, |watch| watch.ask(MemberInput::Boundary(step)))
    }

    /// Whether the generation is broken after an exception in a step, so that the program continues with `next`.
    fn is_broken_after_error(&self, py: Python<'_>) -> PyResult<bool> {
        self.wait(py, |watch| watch.ask(MemberInput::StepFailed))
            .map(|is_own| !is_own)
    }

    /// Whether to leave the mesh. Neither blocks nor asks.
    #[getter]
    fn must_leave(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.watch.get_here(py)?.must_leave())
    }

    /// Whether a change is known that waits for a step boundary. Does not block, and sends no request.
    #[getter]
    fn has_change(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.watch.get_here(py)?.has_change())
    }

    /// Whether an operation of the mesh that still waits has been lost: its connections were ended some time ago.
    #[getter]
    fn is_abandoned(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.watch.get_here(py)?.is_abandoned())
    }

    /// Leaves at the next step boundary; at once outside of a generation.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.tell(py, MemberInput::Leave)
    }

    /// Reports that the last step is done, and waits for the other members. Returns `True` when the group has ended,
    /// which `next` also returns, and `False` if a member is lost or a change begins earlier, so that the mesh must be
    /// left.
    #[pyo3(signature = (timeout=None))]
    fn finish(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<bool> {
        let timeout = timeout.map(|Timeout(timeout)| timeout);
        self.wait(py, |watch| watch.finish(timeout))
    }

    /// Ends the thread and the connection. A member that has not left counts as dead.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let watch = self.watch.take_here()?;
        py.detach(|| drop(watch));
        Ok(())
    }
}

impl Membership {
    fn tell(&self, py: Python<'_>, input: MemberInput) -> PyResult<()> {
        let watch = self.watch.get_here(py)?;
        run(py, move || watch.tell(input))
    }

    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        wait: impl FnOnce(&Watch) -> Result<T, Waited> + Send,
    ) -> PyResult<T> {
        let watch = self.watch.get_here(py)?;
        run(py, move || wait(&watch))?.map_err(|waited| match waited {
            Waited::TimedOut(elapsed) => {
                let text = format!("no list of members after {:.1} s", elapsed.as_secs_f64());
                raise(py, "StoreTimeoutError", text)
            }
            Waited::Interrupted => raise(py, "DistStoreError", "interrupted".to_owned()),
        })
    }
}

fn directive(news: News) -> Directive {
    match news {
        News::Leave => Directive::Leave(("leave",)),
        News::Call(record) => {
            let handles = record.seats.iter().map(|seat| seat.handle.to_string());
            Directive::Call("call", record.attempt.uuid(), handles.collect())
        }
        News::Enter(record, rank) => {
            let Record {
                attempt, source, ..
            } = *record;
            let seats = record.seats.iter();
            let seats = seats.map(|seat| (seat.member.id.0, seat.step, seat.previous));
            Directive::Enter("enter", attempt.uuid(), rank, source, seats.collect())
        }
        News::Over(ending) => {
            let (class, text) = over(ending);
            Directive::Over("over", class, text)
        }
        News::Lost(text) => Directive::Over("over", Some("Unrecoverable"), text),
    }
}

/// The exception for the end of a membership, unless the program requested this end.
fn over(ending: Ending) -> (Option<&'static str>, String) {
    match ending {
        Ending::Evicted(Reason::Left) | Ending::Ended(EndReason::Finished) => (None, String::new()),
        Ending::Evicted(reason) => {
            let text = format!("this process is not a member of the group anymore: {reason}");
            (Some("Evicted"), text)
        }
        Ending::Ended(reason @ EndReason::BelowMinimum) => (
            Some("BelowMinimum"),
            format!("the group has ended: {reason}"),
        ),
        Ending::Ended(reason) => (
            Some("Unrecoverable"),
            format!("the group has ended: {reason}"),
        ),
        Ending::Refused(limit) => (
            Some("Unrecoverable"),
            format!("the group refused this process: {limit}"),
        ),
        ending => (
            Some("Unrecoverable"),
            format!("this process is not a member anymore: {ending:?}"),
        ),
    }
}

/// Converts named values to [`GroupOptions`]; durations are in seconds.
fn group_options(named: BTreeMap<String, f64>) -> PyResult<GroupOptions> {
    let mut options = GroupOptions::new(1);
    for (name, value) in named {
        let seconds = Duration::try_from_secs_f64(value)
            .map_err(|error| PyValueError::new_err(format!("{name} = {value}: {error}")))?;
        #[expect(clippy::cast_possible_truncation, reason = "whole numbers of members")]
        let count = seconds.as_secs() as usize;
        match &*name {
            "size_min" => options.size_min = count,
            "size_first" => options.size_first = count,
            "form_timeout" => options.form_timeout = seconds,
            "ready_timeout" => options.ready_timeout = seconds,
            "below_min_timeout" => options.below_min_timeout = seconds,
            "replace_wait" => options.replace_wait = seconds,
            "boundary_timeout" => options.boundary_timeout = seconds,
            _ => return Err(PyValueError::new_err(format!("no option {name}"))),
        }
    }
    Ok(options)
}
