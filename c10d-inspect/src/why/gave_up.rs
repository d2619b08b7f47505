//! Ranks that stopped waiting although what they waited for has arrived since.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{DRAFTS_MAX, Draft};
use crate::job::Job;
use crate::progress::Progress;
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    for state in &job.groups {
        let mut by_member: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for member in &state.members {
            if let (Progress::GaveUp { member }, Some(rank)) = (member.progress, member.rank) {
                by_member.entry(member).or_default().insert(rank);
            }
        }
        for (member, ranks) in by_member {
            let Some(late) = state.group.member(member) else {
                continue;
            };
            let gave_up = ranks.iter().filter_map(|&rank| {
                job.main_connection(rank)
                    .map(|slot| job.index.last_active(slot))
            });
            let Some(at) = gave_up.min() else { continue };
            if late.key.written < at {
                continue;
            }
            let text = format!(
                "{} gave up waiting for the address of {} in {}, which came {} later: it was late, or \
                 their timeout is too short.",
                text::ranks_start(&ranks),
                if state.group.is_default() {
                    format!("rank {member}")
                } else {
                    format!("member {member}")
                },
                state.group.name.words(),
                text::age(late.key.written.saturating_sub(at)),
            );
            let culprit = state
                .members
                .iter()
                .find(|other| other.published.rank == member)
                .and_then(|other| other.rank);
            let mut draft = Draft::new(FindingKind::GaveUp, text, at)
                .caused_by(culprit)
                .waited_by(ranks);
            draft.is_stall = false;
            drafts.push(draft);
            if drafts.len() > DRAFTS_MAX {
                return;
            }
        }
    }
}
