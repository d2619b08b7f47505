//! Members of a group that wait for other members at a step boundary, or after their last step.

use std::collections::BTreeSet;
use std::time::Duration;

use c10d_membership::{GroupStage, MemberStatus, status_of};
use c10d_store::GroupRecord;

use super::draft::{DRAFTS_MAX, Draft};
use crate::job::Job;
use crate::report::FindingKind;
use crate::text;

/// How much later than another member a member may come to a boundary, because it writes a checkpoint.
const GRACE: Duration = Duration::from_secs(30);

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let groups = job.index.snapshot.groups.iter();
    drafts.extend(
        groups
            .filter_map(|group| find_in(job, group))
            .take(DRAFTS_MAX),
    );
}

fn find_in(job: &Job<'_>, group: &GroupRecord) -> Option<Draft> {
    let (name, status) = (&group.name, status_of(group)?);
    let stopped_for = status.stopped_for.filter(|age| *age >= GRACE)?;
    let is_changing = status.stage == GroupStage::Changing;
    let ranked = status.members.iter().filter(|it| it.rank.is_some());
    let (here, absent): (Vec<&MemberStatus>, Vec<_>) =
        ranked.partition(|it| it.has_finished || is_changing && !it.is_awaited);
    if here.is_empty() || absent.is_empty() {
        return None;
    }
    let are_done = here.iter().all(|it| it.has_finished);
    let (last, theirs) = (last_call(&here), last_call(&absent));
    let (here, absent) = (ranks(&here), ranks(&absent));
    let (who, age) = (text::ranks_start(&here), text::age(stopped_for));
    let waits = match are_done {
        true => format!(
            "{who} {} done the last step, after {last}, {age} ago",
            text::verb(here.len(), "has", "have")
        ),
        false => format!(
            "{who} {} at {last} for {age}",
            text::verb(here.len(), "has waited", "have waited")
        ),
    };
    let text = format!(
        "{waits}, and {} {} not (last: {theirs}). In group {} all ranks have to call boundary after the same steps, with the same \
         numbers.",
        text::ranks(&absent),
        match are_done {
            true => text::verb(absent.len(), "has", "have"),
            false => text::verb(absent.len(), "does", "do"),
        },
        text::shown(name.strip_prefix(b"/").unwrap_or(name)),
    );
    let since = job.index.snapshot.now.saturating_sub(stopped_for);
    let mut draft = Draft::new(FindingKind::Boundary, text, since)
        .caused_by(absent)
        .waited_by(here);
    // After the same boundary, a rank may still write a checkpoint.
    draft.is_stall = !are_done || last != theirs;
    Some(draft)
}

/// The ids of the members, which are the ranks of the workers.
fn ranks(members: &[&MemberStatus]) -> BTreeSet<usize> {
    let ids = members.iter().map(|it| it.member.id.0);
    ids.filter_map(|id| usize::try_from(id).ok()).collect()
}

/// The newest boundary of these members.
fn last_call(members: &[&MemberStatus]) -> String {
    let newest = members.iter().filter_map(|it| it.boundary).max();
    newest.map_or_else(
        || "no boundary".to_owned(),
        |number| format!("boundary({number})"),
    )
}
