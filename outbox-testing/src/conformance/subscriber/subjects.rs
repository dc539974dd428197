//! Rules for subjects.

use super::*;

fn exported<F: SubscriberFixture>(fixture: &F) -> (&'static EventDescriptor, &'static str) {
    let subject: &'static str = fixture.fixed_subject().leak();
    let descriptor = EventDescriptor {
        name: "exported",
        subject: Some(subject),
        ..*NOTED
    };
    (Box::leak(Box::new(descriptor)), subject)
}

pub(super) async fn publish_exported<F: SubscriberFixture>(fixture: &F, sequence: u64) -> Message {
    let (descriptor, subject) = exported(fixture);
    let exported = Message {
        subject: Some(subject.to_owned()),
        ..message(descriptor, "a", sequence)
    };
    fixture.publish(exported.clone()).await;
    exported
}

/// A consumer that requests whole aggregates also receives their messages with fixed subjects.
pub async fn siblings_with_a_fixed_subject_arrive<F: SubscriberFixture>(fixture: &F) {
    let (sibling, _) = exported(fixture);
    let spec = ConsumerSpec {
        whole_aggregates: true,
        siblings: vec![sibling],
        ..consumer("c", &[NOTED], NEVER)
    };
    let noted = publish(fixture, NOTED, "a", 1).await;
    let exported = publish_exported(fixture, 2).await;
    let mut subscription = subscribe(fixture, &spec).await;
    for expected in [noted[0].id, exported.id] {
        let delivery = next_of(&mut subscription, &[NOTED, sibling]).await;
        assert_eq!(read(&delivery).id, expected);
        ack(delivery).await;
    }
}

/// A message belongs only on the subject under which it was published.
pub async fn a_message_belongs_on_its_own_subjects_only<F: SubscriberFixture>(fixture: &F) {
    let (sibling, fixed_subject) = exported(fixture);
    let events = [NOTED, sibling];
    publish(fixture, NOTED, "a.b *", 1).await;
    publish_exported(fixture, 2).await;
    let mut subscription = subscribe(fixture, &consumer("c", &events, NEVER)).await;
    let belongs = |message: &Message, subject: &str, fixed: Option<&[&'static str]>| {
        fixture.subscriber().belongs(message, subject, fixed)
    };
    let forged = Message {
        aggregate: Aggregate::new("other", "a.b *"),
        event_type: "other.noted".to_owned(),
        ..message(NOTED, "a.b *", 1)
    };
    let mixed = Message {
        event_type: NOTED.event_type(),
        ..forged.clone()
    };
    let fixed = [fixed_subject];
    let mut default_subject = None;
    for (own, others) in [(&[] as &[_], &fixed as &[_]), (&fixed, &[])] {
        let delivery = next_of(&mut subscription, &events).await;
        let (message, subject) = (read(&delivery), delivery.incoming().subject.clone());
        assert!(belongs(&message, &subject, Some(own)), "{subject}");
        assert!(!belongs(&forged, &subject, Some(&[])), "{subject}");
        if others.is_empty() {
            assert!(!belongs(&message, &subject, Some(&[])), "{subject}");
        } else {
            assert!(belongs(&message, &subject, None), "of an unknown type");
            assert!(!belongs(&forged, &subject, None), "of an unknown type");
            let others = subject.replacen(".probe.", ".other.", 1);
            assert!(!belongs(&mixed, &others, Some(&[])), "{others}");
            default_subject = Some(subject);
        }
        ack(delivery).await;
    }
    assert_ne!(default_subject.as_deref(), Some(fixed_subject));
}
