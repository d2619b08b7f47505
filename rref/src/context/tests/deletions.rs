//! Unit tests: how many deletions are under way, and which deletions a lost one delays.

use std::time::Instant;

use super::scripted::{A, B, Context, answered, context, created};
use crate::context::state::DeleteWindow;
use crate::context::{Control, Delivery, Effect, Handle, Timing};
use crate::id::ForkId;
use crate::protocol::{Answer, Message};

/// Three messages of two.
const WINDOW: DeleteWindow = DeleteWindow {
    deletes_max: 2,
    batches_max: 3,
};

/// A user with references to values of [`B`], which are dropped.
fn user_with_deletions(now: Instant, count: usize) -> Context {
    let mut user = context(A, now).with_delete_window(WINDOW);
    let forks: Vec<ForkId> = (0..count).map(|_| created(&mut user, now)).collect();
    user.take_effects();
    for fork in forks {
        user.drop_handle(now, Handle::User(fork));
    }
    user
}

/// The number of deletions in each sent batch, and the batches.
fn sent_batches(user: &mut Context) -> (Vec<usize>, Vec<Control>) {
    let effects = user.take_effects().into_iter();
    effects
        .map(|effect| match effect {
            Effect::Send {
                control,
                message: Message::UserDelete { forks },
                ..
            } => (forks.len(), control),
            other => panic!("{other:?}"),
        })
        .unzip()
}

#[test]
fn full_batches_of_deletions_are_sent_beside_a_lost_one() {
    let now = Instant::now();
    let mut user = user_with_deletions(now, 12);
    // The first is alone, as nothing was under way; a third message is the limit.
    let (sizes, batches) = sent_batches(&mut user);
    assert_eq!(sizes, [1, 2, 2]);
    // The first is lost. The remaining batches continue without it.
    user.control_finished(now, batches[1], answered(B, Answer::Ack));
    let (sizes, next) = sent_batches(&mut user);
    assert_eq!(sizes, [2]);
    user.control_finished(now, batches[2], answered(B, Answer::Ack));
    user.control_finished(now, next[0], answered(B, Answer::Ack));
    let (sizes, last) = sent_batches(&mut user);
    assert_eq!(sizes, [2, 2]);
    // Less than a full batch waits for the other batches.
    for batch in last {
        user.control_finished(now, batch, answered(B, Answer::Ack));
    }
    assert_eq!(sent_batches(&mut user).0, []);
    user.control_finished(now, batches[0], answered(B, Answer::Ack));
    assert_eq!(sent_batches(&mut user).0, [1]);
}

#[test]
fn lost_batches_are_sent_again_together_with_what_was_queued_meanwhile() {
    let now = Instant::now();
    let mut user = user_with_deletions(now, 6);
    let (sizes, batches) = sent_batches(&mut user);
    assert_eq!(sizes, [1, 2, 2]);
    for batch in batches {
        user.control_finished(now, batch, Delivery::Unknown("no answer".into()));
    }
    assert_eq!(sent_batches(&mut user).0, []);
    user.tick(now + Timing::default().resend_after);
    let (sizes, batches) = sent_batches(&mut user);
    assert_eq!(sizes.iter().sum::<usize>(), 6, "{sizes:?}");
    for batch in batches {
        user.control_finished(now, batch, answered(B, Answer::Ack));
    }
    assert!(user.is_drained());
}
