//! `c10d why`: who the job waits for.

use c10d_inspect::http::{StatusError, StatusPages};
use c10d_inspect::workers::Job;
use c10d_inspect::{Report, WorkersStore};
use c10d_socket::{Cancel, HostPort, printable};
use clap::Args;
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::output::{print, print_json, text_style};
use crate::status::{StatusArgs, until_observed};

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    no rank waits for another rank, and no node for another node
  2    invalid arguments
  3    no connection, a server that is not c10d's, or standard output cannot be written
  4    ranks wait for a missing or stuck rank, or nodes wait for a missing node
  141  the reader of standard output, for example `head`, closed it; no message";

pub(crate) const EXAMPLES: &str = "\
Examples:
  c10d why --connect node0:29400
  c10d why --connect node0:29400 --secret-file secret
  c10d why --connect etcd://etcd0,etcd1,etcd2/job-17
  c10d why --connect node0:29400 --json | jq .headline";

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Print the report as one JSON object, with all ranks.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    status: StatusArgs,
}

/// Prints the report. Fails with [`Failure::Stuck`] if a rank is missing.
pub(crate) fn run(args: &WhyArgs) -> Result<(), Failure> {
    let asked = args.status.open_for_all()?;
    let first = Answer::of(&asked, args.json)?;
    match asked.follow(first.report.stores_elsewhere(), |pages| {
        Answer::of(pages, args.json)
    }) {
        Ok(None) => first.print(None)?,
        Ok(Some(followed)) => followed.answer.print(Some((&followed.store, &asked)))?,
        // The known part is printed first, then the reason why it is incomplete.
        Err(error) => {
            first.print(None).or_else(|failure| match failure {
                Failure::Stuck => Ok(()),
                failure => Err(failure),
            })?;
            return Err(error.into());
        }
    }
    Ok(())
}

/// The report of one store.
struct Answer {
    server: HostPort,
    report: Report,
    /// Every field of the server's answer, including fields of a newer version, if JSON is to be printed.
    json: Option<Map<String, Value>>,
}

impl Answer {
    /// Returns the report of a store after the launchers have observed their workers. Without a request, launchers do
    /// this only if a worker has been quiet for a while.
    fn of(pages: &StatusPages, is_json: bool) -> Result<Self, StatusError> {
        let first = Self::at_once(pages, is_json)?;
        let job = Job::of(first.report, pages);
        match job.ask_for_samples(|_| true, &Cancel::new()) {
            0 => Ok(Self {
                report: job.into_report(),
                ..first
            }),
            nodes => until_observed(
                nodes,
                || Self::at_once(pages, is_json),
                |answer| &answer.report,
            ),
        }
    }

    fn at_once(pages: &StatusPages, is_json: bool) -> Result<Self, StatusError> {
        let (report, json) = match is_json {
            false => (pages.get("/why.json")?, None),
            true => {
                let json: Map<String, Value> = pages.get("/why.json?ranks=all")?;
                let report = serde_json::from_value(Value::Object(json.clone()));
                let report = report.map_err(|error| pages.not_understood("/why.json", error))?;
                (report, Some(json))
            }
        };
        Ok(Self {
            server: pages.server(),
            report,
            json,
        })
    }

    /// Prints it. `named` is the store, and the rendezvous that names it, if the user asked the latter.
    fn print(self, named: Option<(&WorkersStore, &StatusPages)>) -> Result<(), Failure> {
        let printed = match self.json {
            Some(mut json) => {
                json.insert("store".to_owned(), self.server.to_string().into());
                print_json(Value::Object(json))
            }
            None => {
                let mut text = self.report.to_text(text_style());
                if let Some((store, rendezvous)) = named {
                    text += &format!(
                        "\nThis is the store of the workers of run \"{}\", {}, which the rendezvous at {} names.\n",
                        printable(&store.run_id, usize::MAX),
                        self.server,
                        rendezvous.server()
                    );
                }
                print(text.as_bytes())
            }
        };
        // Exit code 4 of other commands, for an output that cannot be written, means something else here.
        printed.map_err(|failure| match failure {
            Failure::Output(source) => Failure::system("cannot write to standard output")(source),
            failure => failure,
        })?;
        if self.report.is_stuck {
            return Err(Failure::Stuck);
        }
        Ok(())
    }
}
