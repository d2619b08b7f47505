//! The computation of the ranks of `worker.py` in one process without faults: the same model on the same batches.

const ROWS: u64 = 840;
const FEATURES: usize = 8;
const LEARNING_RATE: f64 = 0.05;

/// Sums of different groups are rounded differently; a missing or repeated step changes later losses by more.
const LOSS_TOLERANCE: f64 = 1e-9;

/// The undisturbed run, as far as it was asked for.
#[derive(Debug, Default)]
pub(super) struct Training {
    steps: Vec<Step>,
    weights: [f64; FEATURES],
    bias: f64,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    chain: u64,
    loss: f64,
}

impl Training {
    /// The state that a rank must have after this step: its chain, which follows from all earlier steps, and the loss
    /// of the step.
    pub(super) fn after(&mut self, step: u64) -> (u64, f64) {
        let index = usize::try_from(step).unwrap_or(usize::MAX);
        while self.steps.len() <= index {
            self.advance();
        }
        let step = self.steps[index];
        (step.chain, step.loss)
    }

    /// Whether a rank has what it must have after this step.
    pub(super) fn is_right(&mut self, step: u64, chain: u64, loss: f64) -> bool {
        let (right_chain, right_loss) = self.after(step);
        chain == right_chain && (loss - right_loss).abs() <= LOSS_TOLERANCE * right_loss.abs()
    }

    fn advance(&mut self) {
        let step = self.steps.len() as u64;
        let mut loss = 0.0;
        let mut gradient = [0.0; FEATURES];
        let mut bias_gradient = 0.0;
        for row in 0..ROWS {
            let mut inputs = [0.0; FEATURES];
            for (feature, input) in (0_u64..).zip(&mut inputs) {
                *input = ((row * 7 + feature * 29 + step * 13) % 101) as f64 / 101.0 - 0.5;
            }
            let target = ((row * 31 + step * 17) % 89) as f64 / 89.0;
            let products = inputs.iter().zip(&self.weights);
            let error =
                products.map(|(input, weight)| input * weight).sum::<f64>() + self.bias - target;
            loss += error * error;
            for (slope, input) in gradient.iter_mut().zip(inputs) {
                *slope += 2.0 * error * input;
            }
            bias_gradient += 2.0 * error;
        }
        let rows = ROWS as f64;
        for (weight, slope) in self.weights.iter_mut().zip(gradient) {
            *weight -= LEARNING_RATE * slope / rows;
        }
        self.bias -= LEARNING_RATE * bias_gradient / rows;
        let chain = self.steps.last().map_or(0, |last| last.chain);
        self.steps.push(Step {
            chain: (chain * 48_271 + step + 1) % 2_147_483_647,
            loss: loss / rows,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are PyTorch 2.15's.
    #[test]
    fn it_trains_as_pytorch_does() {
        let mut training = Training::default();
        assert!(training.is_right(0, 1, 0.3264106564226499));
        assert!(training.is_right(816, 1_590_591_766, 0.08348624709834664));
    }

    /// A lost or repeated step changes the losses of the later steps, like the chain.
    #[test]
    fn a_step_that_is_left_out_or_done_twice_is_found() {
        let mut right = Training::default();
        right.after(150);
        let mut repeated = Training::default();
        repeated.after(99);
        let saved = (repeated.weights, repeated.bias);
        repeated.after(100);
        // The state before step 100 is used as the state after it.
        (repeated.weights, repeated.bias) = saved;
        let (chain, loss) = repeated.after(150);
        let (right_chain, right_loss) = right.after(150);
        assert_eq!(chain, right_chain);
        assert!(!right.is_right(150, chain, loss));
        assert!(!right.is_right(150, chain + 1, right_loss));
    }
}
