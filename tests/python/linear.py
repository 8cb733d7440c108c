"""A worker without torch: linear regression on lockstep.Session. usage: linear.py [fork] [imitated] [poisoned] [away=FILE] [hangs]

imitated: on the imitated device of tests/fake_device. away: worker 1 has a run of round 20 in hand, or of a later one, and does
something else until that file is there; it prints whether others have computed the run by then.

hangs: worker 1 never comes back from a run of round 20, or of a later one.

poisoned: of one sample the loss is no number.

At the end it prints which policies were in force, and who was slow, in whatever round: "policies [...] slow [...]".

Prints "digest DIGEST" and "error E", the largest difference between a parameter and what the samples were made with.
"""

import array
import os
import random
import sys
import threading

import lockstep

imitated = None
if "imitated" in sys.argv:
    import imitated

FEATURES = 8
SAMPLES = 1024
POISON = 17
SETTINGS = "[job]\nepochs = 12\nglobal_batch = 64\n[optimizer]\nlr = 0.5\nmomentum = 0.5\n"


def sample(index):
    draw = random.Random(index)
    features = [draw.random() - 0.5 for _ in range(FEATURES)]
    return features, sum(i * x for i, x in enumerate(features))


def hang_for_ever():
    while True:
        threading.Event().wait(3600)


def main():
    session = lockstep.Session(
        os.environ["LOCKSTEP_COORDINATOR"],
        secret_file=os.environ["LOCKSTEP_SECRET_FILE"],
        settings=SETTINGS,
        slowdowns=os.environ["LOCKSTEP_SLOWDOWN"],
        wanted=int(os.environ["LOCKSTEP_WORKER"]),
        device="cuda:0" if imitated else None,
    )
    samples = [sample(i) for i in range(SAMPLES)]
    initial = array.array("f", [0.0] * FEATURES)
    session.begin(
        lockstep.JobDescription(
            tensors=[lockstep.Tensor("first", (2, 2)), lockstep.Tensor("second", (4,))],
            initial=initial.buffer_info()[0],
            dataset_digest="linear",
            train_samples=SAMPLES,
        )
    )
    if "fork" in sys.argv:
        child = os.fork()
        if child == 0:
            try:
                session.next(0)
            except lockstep.UsageError as error:
                print(f"child: {error}", flush=True)
            session.end()  # does nothing here
            os._exit(0)
        os.waitpid(child, 0)
    away = next((word.removeprefix("away=") for word in sys.argv if word.startswith("away=")), None)
    policies, slow = set(), set()
    while (work := session.next(0.2)).kind is not lockstep.Kind.END:
        if work.counted:
            policies.add(work.counted.policy)
            slow.add(work.counted.slow)
        if work.kind is not lockstep.Kind.TRAIN:
            continue
        if "hangs" in sys.argv and session.worker == 1 and work.round >= 20:
            hang_for_ever()
        if away and session.worker == 1 and work.round >= 20:
            session.away(600, "validation")
            parameters = list(session.floats(work.parameters))
            while not os.path.exists(away):
                threading.Event().wait(0.02)
            assert parameters == list(session.floats(work.parameters))
            session.back()
            print(f"of others: {session.cancelled()}", flush=True)
            away = None
        assert work.device == (0 if imitated else -1), work
        if imitated:
            late = imitated.Late(work.gradient, FEATURES)
            parameters, gradient = imitated.host(work.parameters, FEATURES), late.array
        else:
            parameters, gradient = session.floats(work.parameters), session.floats(work.gradient)
        loss = 0.0
        for index in work.samples:
            features, target = samples[index]
            error = sum(p * x for p, x in zip(parameters, features, strict=True)) - target
            for i, x in enumerate(features):
                gradient[i] += error * x
            loss += error * error / 2
            if index == POISON and "poisoned" in sys.argv:
                loss = float("nan")
        if imitated:
            for tensor in range(2):
                session.block_final(tensor, late.ask())
            session.await_stream(imitated.stream)
        session.done(len(work.samples), loss)
    assert work.final_parameters, work.not_final
    found = imitated.host(work.parameters, FEATURES) if imitated else session.floats(work.parameters)
    worst = max(abs(p - i) for i, p in enumerate(found))
    print(f"policies {sorted(policies)} slow {sorted(slow)}", flush=True)
    print(f"digest {work.params_digest}\nerror {worst:.4f}", flush=True)
    session.end()


main()
