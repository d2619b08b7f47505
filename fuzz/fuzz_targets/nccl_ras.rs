//! Any bytes as the answer of NCCL's RAS service, and what is said of them.
#![no_main]

use c10d_inspect::nccl::NcclReport;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(report) = NcclReport::parse(input) {
        for problem in report.problems() {
            assert!(!problem.detail.contains(char::is_control));
            assert!(
                problem
                    .communicator
                    .bytes()
                    .all(|it| it.is_ascii_hexdigit())
            );
        }
    }
});
