use proptest::prelude::*;

use super::*;

fn id() -> impl Strategy<Value = GloballyUniqueId> {
    (0..=rpc_agent::WORKER_ID_MAX, any::<u64>(), any::<u64>()).prop_map(
        |(worker, incarnation, local_id)| GloballyUniqueId {
            created_on: WorkerId::new(worker).unwrap(),
            incarnation,
            local_id,
        },
    )
}

fn rref() -> impl Strategy<Value = RRefId> {
    id().prop_map(RRefId)
}

fn fork() -> impl Strategy<Value = ForkId> {
    id().prop_map(ForkId)
}

fn text() -> impl Strategy<Value = Arc<str>> {
    "\\PC{0,30}".prop_map(Arc::from)
}

fn body() -> impl Strategy<Value = Bytes> {
    any::<Vec<u8>>().prop_map(Bytes::from)
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (rref(), fork(), text(), text(), body()).prop_map(
            |(rref, fork, type_name, function, arguments)| Message::RemoteCall {
                rref,
                fork,
                type_name,
                function,
                arguments
            }
        ),
        rref().prop_map(|rref| Message::Fetch { rref }),
        (rref(), text(), body()).prop_map(|(rref, function, arguments)| Message::Call {
            rref,
            function,
            arguments
        }),
        (rref(), fork()).prop_map(|(rref, fork)| Message::ForkRequest { rref, fork }),
        fork().prop_map(|fork| Message::ChildAccept { fork }),
        proptest::collection::vec((rref(), fork()), 0..5)
            .prop_map(|forks| Message::UserDelete { forks }),
        (rref(), fork(), text()).prop_map(|(rref, fork, error)| Message::Abandon {
            rref,
            fork,
            error
        }),
        (rref(), fork()).prop_map(|(rref, fork)| Message::Probe { rref, fork }),
        (rref(), fork()).prop_map(|(rref, fork)| Message::Query { rref, fork }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Ack),
        Just(Answer::RemoteAccept),
        Just(Answer::Created),
        Just(Answer::Abandoned),
        Just(Answer::Received),
        Just(Answer::NotReceived),
        Just(Answer::Known),
        Just(Answer::Deleted),
        Just(Answer::Unknown),
        text().prop_map(Answer::Refused),
    ]
}

fn carries_bytes(message: &Message) -> bool {
    matches!(
        message,
        Message::RemoteCall { .. } | Message::Call { .. } | Message::UserDelete { .. }
    )
}

proptest! {
    #[test]
    fn messages_survive_encoding_and_no_prefix_decodes(any in message(), incarnation: u64) {
        let bytes = Bytes::from(any.encode(incarnation));
        prop_assert_eq!(Message::decode(&bytes), Ok((incarnation, any.clone())));
        if !carries_bytes(&any) {
            for end in 0..bytes.len() {
                prop_assert!(Message::decode(&bytes.slice(..end)).is_err());
            }
            let longer = Bytes::from([&bytes[..], &[0]].concat());
            prop_assert_eq!(Message::decode(&longer), Err(DecodeError::Trailing { bytes: 1 }));
        }
    }

    #[test]
    fn answers_survive_encoding_and_no_prefix_decodes(any in answer(), incarnation: u64) {
        let bytes = any.encode(incarnation);
        prop_assert_eq!(Answer::decode(&bytes), Ok((incarnation, any)));
        for end in 0..bytes.len() {
            prop_assert!(Answer::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn fork_data_decodes_from_the_start_of_longer_input(
        owner in id(), rref in rref(), fork in fork(), type_name in text(), after: Vec<u8>
    ) {
        let data = ForkData {
            owner: owner.created_on, owner_incarnation: owner.incarnation, rref, fork, parent: fork.0.created_on, type_name
        };
        let mut bytes = Vec::new();
        data.encode(&mut bytes);
        bytes.extend_from_slice(&after);
        let mut rest = &bytes[..];
        prop_assert_eq!(ForkData::decode(&mut rest), Ok(data));
        prop_assert_eq!(rest, &after[..]);
    }

    #[test]
    fn random_bytes_do_not_panic(kind in 0..11_u8, bytes: Vec<u8>) {
        let bytes = [&[VERSION, kind][..], &bytes].concat();
        let _ = Answer::decode(&bytes);
        let _ = ForkData::decode(&mut &bytes[..]);
        let _ = Message::decode(&Bytes::from(bytes));
    }
}

#[test]
fn more_deletions_than_allowed_are_refused() {
    let id = GloballyUniqueId {
        created_on: WorkerId::new(1).unwrap(),
        incarnation: 2,
        local_id: 3,
    };
    let mut bytes = Vec::new();
    put_header(&mut bytes, 5, 1);
    for _ in 0..=DELETES_MAX {
        put_id(&mut bytes, id);
        put_id(&mut bytes, id);
    }
    assert_eq!(
        Message::decode(&bytes.into()),
        Err(DecodeError::TooLong {
            what: "list of deletions",
            len: DELETES_MAX + 1,
            max: DELETES_MAX
        })
    );
}

#[test]
fn a_length_above_the_limit_is_refused_before_its_bytes_arrive() {
    let mut bytes = Vec::new();
    put_header(&mut bytes, 9, 1);
    bytes.extend_from_slice(&[0xff; 4]);
    assert_eq!(
        Answer::decode(&bytes),
        Err(DecodeError::TooLong {
            what: "error",
            len: u32::MAX as usize,
            max: ERROR_BYTES_MAX
        })
    );
}

#[test]
fn a_worker_id_beyond_15_bits_is_refused() {
    let mut bytes = Vec::new();
    put_header(&mut bytes, 4, 1);
    bytes.extend_from_slice(&[0xff; ID_BYTES]);
    assert_eq!(
        Message::decode(&bytes.into()),
        Err(DecodeError::Worker { worker: 0xffff })
    );
}

#[test]
fn a_text_is_cut_between_two_characters() {
    assert_eq!(cut("aéb", 2), "a");
    assert_eq!(cut("aéb", 3), "aé");
    assert_eq!(cut("é", 0), "");
}

proptest! {
    #[test]
    fn debug_output_holds_no_arguments(rref in rref(), fork in fork()) {
        let arguments = Bytes::from_static(b"QZQZ");
        let messages = [
            Message::RemoteCall {
                rref,
                fork,
                type_name: "i64".into(),
                function: "f".into(),
                arguments: arguments.clone(),
            },
            Message::Call { rref, function: "f".into(), arguments },
        ];
        for message in messages {
            let shown = format!("{message:?}");
            prop_assert!(shown.contains("arguments_bytes: 4"), "{}", shown);
            prop_assert!(!shown.contains("QZQZ"), "{}", shown);
        }
    }
}

proptest! {
    #[test]
    fn a_name_and_its_arguments_survive_encoding(name in "\\PC{0,60}", arguments: Vec<u8>) {
        let mut bytes = Vec::new();
        join_name(&name, &mut bytes).unwrap();
        let named = bytes.len();
        bytes.extend_from_slice(&arguments);
        let bytes = Bytes::from(bytes);
        prop_assert_eq!(split_name(&bytes), Some((name, Bytes::from(arguments))));
        for end in 0..named {
            prop_assert_eq!(split_name(&bytes.slice(..end)), None);
        }
    }

    #[test]
    fn any_bytes_split_into_a_name_and_arguments_or_fail(bytes: Vec<u8>) {
        let bytes = Bytes::from(bytes);
        if let Some((name, arguments)) = split_name(&bytes) {
            let mut joined = Vec::new();
            join_name(&name, &mut joined).unwrap();
            joined.extend_from_slice(&arguments);
            prop_assert_eq!(joined, bytes);
        }
    }
}

#[test]
fn the_longest_name_fits_and_a_longer_one_is_refused_and_leaves_no_bytes() {
    let longest = "n".repeat(FUNCTION_NAME_BYTES_MAX);
    let mut bytes = Vec::new();
    join_name(&longest, &mut bytes).unwrap();
    assert_eq!(split_name(&bytes.into()), Some((longest, Bytes::new())));

    let mut bytes = Vec::new();
    let error = join_name(&"n".repeat(FUNCTION_NAME_BYTES_MAX + 1), &mut bytes);
    assert_eq!(
        error,
        Err("a function name has at most 255 bytes, this one has 256".to_owned())
    );
    assert!(bytes.is_empty());
}

#[test]
fn an_invalid_name_is_refused() {
    for bytes in [
        &b""[..],
        b"\x01",
        b"\xff",
        b"\x03ab",
        b"\x02\xff\xfe",
        b"\x01\xc3\xa9",
    ] {
        assert_eq!(
            split_name(&Bytes::copy_from_slice(bytes)),
            None,
            "{bytes:?}"
        );
    }
    let empty = Some((String::new(), Bytes::new()));
    assert_eq!(split_name(&Bytes::from_static(&[0])), empty);
}
