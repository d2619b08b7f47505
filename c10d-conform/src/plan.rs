//! The cases of a column, with cases derived from them: byte by byte, and cut in two at each byte.

use std::time::Duration;

use crate::case::{self, Answer, Case, MalformedCase};
use crate::cases;
use crate::column::Column;
use crate::request::{Opcode, RequestBytes};
use crate::rewrite::{is_movable, move_keys};
use crate::script::{Act, Script, Send, Step, commands_and_keys};

/// The most places at which one case is cut in two.
const CUTS_MAX: usize = 40;

/// Longer requests are not sent byte by byte.
const BYTEWISE_MAX: usize = 512;

/// Pause between pieces, so that most arrive separately.
const BYTE_PAUSE: Duration = Duration::from_micros(200);
const CUT_PAUSE: Duration = Duration::from_millis(1);

/// A case of a column, ready to run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) operation: String,
    /// Whether the case reads the whole store, or may stop other cases.
    pub(crate) is_alone: bool,
    /// Whether its connections may be in a state that they should not be in.
    pub(crate) is_quirk: bool,
    pub(crate) attempts: Vec<Answer>,
}

/// All cases of a column. Runs with different values of `run` have distinct keys.
///
/// # Errors
/// A case is malformed, which a test rules out for the cases of this crate.
pub(crate) fn plans(column: Column, run: &str) -> Result<Vec<Plan>, MalformedCase> {
    let mut plans = Vec::new();
    let mut cut: Vec<String> = Vec::new();
    for text in [
        cases::SINGLE,
        cases::SEVERAL,
        cases::GENERATED,
        cases::QUIRKS,
    ] {
        for case in case::read(text)? {
            let plan = plan(&case, column)?;
            if let Some(script) = divisible(&plan, &case) {
                plans.push(Plan {
                    name: format!("{}@bytes", plan.name),
                    attempts: vec![Answer::Script(bytewise(script))],
                    ..plan.clone()
                });
                if !cut.contains(&plan.operation) {
                    cut.push(plan.operation.clone());
                    plans.push(Plan {
                        name: format!("{}@cuts", plan.name),
                        attempts: vec![Answer::Script(cut_everywhere(script))],
                        ..plan.clone()
                    });
                }
            }
            plans.push(plan);
        }
    }
    plans.extend(column.lacks().iter().map(|opcode| unknown_command(*opcode)));
    for (index, plan) in plans.iter_mut().enumerate() {
        for (attempt, answer) in plan.attempts.iter_mut().enumerate() {
            if let Answer::Script(script) = answer
                && !plan.is_alone
            {
                move_keys(script, &format!("conform-{run}/{index}.{attempt}/"));
            }
        }
    }
    Ok(plans)
}

fn plan(case: &Case, column: Column) -> Result<Plan, MalformedCase> {
    let mut is_alone = case.is_alone;
    let mut attempts = case.answers(column)?;
    for answer in &mut attempts {
        let Answer::Script(script) = answer else {
            continue;
        };
        let (opcodes, keys) = commands_and_keys(script);
        let is_counting = |it: &Opcode| [Opcode::GETNUMKEYS, Opcode::LIST_KEYS].contains(it);
        is_alone |= !is_movable(&keys) || opcodes.iter().any(is_counting);
        if let Some(lacking) = opcodes.iter().find(|it| column.lacks().contains(it)) {
            let name = lacking.name().unwrap_or_default();
            *answer = Answer::Skip(format!("{column} has no {name}"));
        }
    }
    Ok(Plan {
        name: case.name.clone(),
        operation: case.operation.clone(),
        is_alone,
        is_quirk: case.is_quirk,
        attempts,
    })
}

/// The script, if it may be sent in any pieces.
fn divisible<'p>(plan: &'p Plan, case: &Case) -> Option<&'p Script> {
    let [Answer::Script(script)] = &plan.attempts[..] else {
        return None;
    };
    let is_plain = script.iter().all(|step| match &step.act {
        Act::Open { has_handshake } => *has_handshake,
        Act::Send(send) => send.cuts.is_empty() && send.bytes.len() <= BYTEWISE_MAX,
        Act::Receive(_) | Act::Fence => step.connection == script[0].connection,
        Act::End | Act::Silence(_) | Act::Close | Act::Release | Act::Pause(_) => false,
    });
    (is_plain && !plan.is_alone && !case.is_quirk).then_some(script)
}

fn bytewise(script: &Script) -> Script {
    let mut script = script.clone();
    for step in &mut script {
        if let Act::Send(send) = &mut step.act {
            send.cuts = (1..send.bytes.len()).collect();
            send.pause = BYTE_PAUSE;
        }
    }
    script
}

/// The last request of the script, cut at each byte, each time with other keys and on its own connection.
fn cut_everywhere(script: &Script) -> Script {
    let mut whole = Script::new();
    let is_send = |step: &Step| matches!(step.act, Act::Send(_));
    let Some(last) = script.iter().rposition(is_send) else {
        return whole;
    };
    let length = match &script[last].act {
        Act::Send(send) => send.bytes.len(),
        _ => 0,
    };
    let step = length.div_ceil(CUTS_MAX).max(1);
    for cut in (1..length).step_by(step) {
        let mut script = script.clone();
        if let Act::Send(send) = &mut script[last].act {
            send.cuts = vec![cut];
            send.pause = CUT_PAUSE;
        }
        move_keys(&mut script, &format!("{cut}/"));
        let connection = format!("cut at {cut}");
        script.push(Step {
            connection: String::new(),
            act: Act::Release,
        });
        whole.extend(script.into_iter().map(|step| Step {
            connection: connection.clone(),
            ..step
        }));
    }
    whole
}

/// A release without a command closes the connection on it.
fn unknown_command(opcode: Opcode) -> Plan {
    let name = opcode.name().unwrap_or_default();
    let acts = [
        Act::Open {
            has_handshake: true,
        },
        Act::Send(Send::whole(RequestBytes::new(opcode).0)),
        Act::End,
    ];
    let script = acts.into_iter().map(|act| Step {
        connection: "A".to_owned(),
        act,
    });
    Plan {
        name: format!("{}_is_unknown", name.to_lowercase()),
        operation: name.to_owned(),
        is_alone: false,
        is_quirk: false,
        attempts: vec![Answer::Script(script.collect())],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::column::COLUMNS;

    #[test]
    fn the_cases_of_all_columns_can_be_read_and_have_names_of_their_own() {
        for column in COLUMNS {
            let plans = plans(column, "run").unwrap_or_else(|error| panic!("{column}: {error}"));
            let names: BTreeSet<&str> = plans.iter().map(|plan| &*plan.name).collect();
            assert_eq!(names.len(), plans.len(), "{column}");
            assert!(plans.len() > 200, "{column}: {}", plans.len());
        }
    }

    #[test]
    fn cases_beside_others_share_no_key_with_them_or_with_another_run() {
        let mut owners = BTreeMap::new();
        for run in ["first", "second"] {
            for plan in plans(Column::default(), run).expect("they can be read") {
                for (attempt, answer) in plan.attempts.iter().enumerate() {
                    let Answer::Script(script) = answer else {
                        continue;
                    };
                    if plan.is_alone {
                        continue;
                    }
                    for key in commands_and_keys(script).1 {
                        let owner = (run, plan.name.clone(), attempt);
                        let before = owners.insert(key, owner.clone());
                        assert!(before.is_none_or(|it| it == owner), "{owner:?}");
                    }
                }
            }
        }
    }
}
