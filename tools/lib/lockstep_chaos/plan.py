"""Draws a job and its schedule of faults from a seed. The draw depends on the seed and the job's number alone. Things that this machine
cannot do are left out afterwards, so the rest of a schedule is the same everywhere.
"""

import dataclasses
import random

TIMEOUT_S = 3.0  # liveness.timeout of every job
ROUND_S = 0.06  # about, without faults
SAMPLES = 2048  # of an epoch
BATCH = 64
UNITS = 24
STEPS = 2  # of the policies local: the batch is divisible by them and by 2 or 4 workers
FAULTS_FROM = 0.3  # seconds after the first checkpoint
MOST_LOSSES = 4  # of workers in a job: the launcher waits longer for each restart that follows soon

# Each policy, and how often it is drawn.
POLICIES = {"full": 3, "backup": 2, "deadline": 2, "partial": 1, "full+flexrr": 2, "full+balance": 1, "backup+flexrr": 1, "partial+balance": 1,
            "auto": 3, "async": 1, "local": 1, "local+backup": 1}
EXCHANGED = ("full", "backup", "deadline", "partial", "full+flexrr", "full+balance", "auto")  # by tools/ctl, in a job without local steps

# Each kind of fault: what it needs of the machine or the job, how often it is drawn, and how long it lasts in seconds (0: at once).
KINDS = {
    "kill-worker": ((), 3, (0, 0)),
    "stop-worker": ((), 4, (0.2, 2.2 * TIMEOUT_S)),
    "hold-interpreter": (("torch",), 3, (0.2, 2.2 * TIMEOUT_S)),
    "drain-worker": ((), 1, (1.0, 4.0)),  # then another one joins
    "slow-worker": ((), 2, (1.0, 6.0)),
    "change-policy": ((), 2, (0, 0)),
    "kill-coordinator": ((), 2, (0, 0)),
    "stop-coordinator": ((), 2, (0.2, 2.0 * TIMEOUT_S)),
    "cut-link": (("hosts",), 3, (0.3, 2.5 * TIMEOUT_S)),
    "one-way-link": (("hosts",), 3, (0.3, 2.5 * TIMEOUT_S)),
    "slow-link": (("hosts",), 2, (1.0, 6.0)),
    "full-disk": (("disk",), 1, (0.5, 3.0)),
    "read-only-disk": (("disk",), 1, (0.5, 3.0)),
}
LOSSES = ("kill-worker", "drain-worker")


@dataclasses.dataclass(frozen=True)
class Fault:
    at: float  # seconds after the first checkpoint
    kind: str
    seconds: float
    victim: float  # 0 to 1: which of the workers that live then; of the hosts for a link
    other: float  # the same for the second end of a link, and for a choice within a kind


@dataclasses.dataclass
class Plan:
    seed: int
    job: int
    workers: int
    hosts: tuple  # workers on each; empty: all on this machine, without namespaces
    torch: bool
    disk: bool  # the run directory lies on a small disk of its own
    settings: dict
    faults: list

    def title(self):
        get = self.settings.get
        path = get("exchange.transport", "auto") if get("exchange.mapping") == "off" or self.hosts else "mapped"
        words = [get("policy.name"), path + (", encrypted" if get("exchange.encryption") == "on" else ""), get("exchange.algorithm", "direct")]
        words += [get(key) for key in ("exchange.compression", "exchange.dtype") if key in self.settings]
        words += [f"{get('optimizer.replicas')} replicas"] if "optimizer.replicas" in self.settings else []
        words += [f"at least {get('job.min_workers')}"] if "job.min_workers" in self.settings else []
        words.append(f"{self.workers} {'PyTorch' if self.torch else 'C++'} workers" + (f" on {len(self.hosts)} hosts" if self.hosts else ""))
        return ", ".join(words + (["own disk"] if self.disk else []))


def draw(seed, number, able, without=()):
    """`able`: the abilities of this machine, of torch, hosts, disk and ucx. `without`: kinds of faults to leave out."""
    draws = random.Random(f"lockstep chaos {seed} {number}")
    torch = draws.random() < 0.35
    workers = draws.randint(2, 4) if torch else draws.randint(2, 6)
    torch = torch and "torch" in able
    spread = draws.random() < 0.5
    hosts = _spread(workers, draws.randint(2, 3)) if workers > 2 else (1, 1)
    disk = draws.random() < 0.2
    settings = _settings(draws, workers, torch, "ucx" in able, number)
    plan = Plan(seed, number, workers, hosts if spread and "hosts" in able else (), torch, disk and "disk" in able, settings, [])
    plan.faults = [fault for fault in _faults(draws) if _fits(fault, plan) and fault.kind not in without]
    _limit_losses(plan)
    return plan


def _spread(workers, hosts):
    return tuple(workers // hosts + (host < workers % hosts) for host in range(hosts))


def _settings(draws, workers, torch, ucx, number):
    """Only what may be chosen together (base/compatibility.h)."""
    policy = draws.choices(list(POLICIES), POLICIES.values())[0]
    transport = draws.choice(("auto", "tcp", "encrypted", "ucx"))
    algorithm = draws.choice(("direct", "direct", "ring", "tree", "auto"))
    coding = draws.choice(("none", "none", "none", "topk", "powersgd", "bf16", "fp16", "stochastic"))
    replicas = draws.random() < 0.3 and workers > 2
    optimizer = draws.choice(("sgd", "adamw"))
    clip = draws.random() < 0.2
    quorum = draws.choice((None, None, 1, (workers + 1) // 2))
    epochs = draws.randint(6, 12)
    widths = draws.choice(("32", "256,128", "64,64,64"))
    count = draws.randint(2, workers - 1) if replicas else 0
    local = policy.startswith("local")
    synchronous = policy != "async" and not local
    if local and (BATCH % (STEPS * workers) or torch):
        policy, local, synchronous = "full", False, True
    if not synchronous or coding != "none":
        algorithm = "direct"
    if not synchronous or coding != "none" or algorithm != "direct" or torch:
        count = 0
    if policy == "async" and coding in ("topk", "powersgd"):
        coding = "none"
    settings = {
        "job.epochs": epochs, "job.global_batch": BATCH, "job.units": UNITS if not local else "auto",
        "liveness.timeout": f"{TIMEOUT_S:g}s", "policy.name": policy,
        "checkpoint.every_epochs": 0, "checkpoint.every_rounds": 12, "evaluation.every_epochs": 3,
        "emulate.unit_time": f"{1e6 * ROUND_S * workers / UNITS:.0f}us",
    }
    if local:
        settings["local.steps"] = STEPS
    if not torch:
        settings |= {"job.seed": 1 + number, "job.join_timeout": "20s", "model.name": "mlp", "model.widths": widths, "optimizer.name": optimizer,
                     "optimizer.lr": 0.05 if optimizer == "sgd" else 0.003, "data.format": "synthetic", "data.synthetic_train": SAMPLES,
                     "data.synthetic_test": 512, "data.synthetic_features": 32}
        if clip:
            settings["optimizer.clip"] = 1.0
    settings |= {"auto": {}, "tcp": {"exchange.mapping": "off", "exchange.transport": "tcp"},
                 "encrypted": {"exchange.mapping": "off", "exchange.transport": "tcp", "exchange.encryption": "on"},
                 "ucx": {"exchange.mapping": "off", "exchange.transport": "ucx"} if ucx else {}}[transport]
    if algorithm != "direct":
        settings["exchange.algorithm"] = algorithm
    settings |= {"none": {}, "topk": {"exchange.compression": "topk", "exchange.topk_fraction": 0.1},
                 "powersgd": {"exchange.compression": "powersgd", "exchange.powersgd_rank": 4}, "bf16": {"exchange.dtype": "bf16"},
                 "fp16": {"exchange.dtype": "fp16"}, "stochastic": {"exchange.dtype": "bf16", "exchange.rounding": "stochastic"}}[coding]
    if coding in ("topk", "powersgd"):
        settings["checkpoint.residuals"] = "true"
    if count:
        settings["optimizer.replicas"] = count
    if quorum is not None:
        settings["job.min_workers"] = quorum
    return settings


def _faults(draws):
    faults, at = [], FAULTS_FROM
    spacing = draws.choice((0.5, 1.0, 2.0))
    for _ in range(draws.randint(4, 12)):
        kind = draws.choices(list(KINDS), [weight for _, weight, _ in KINDS.values()])[0]
        low, high = KINDS[kind][2]
        faults.append(Fault(round(at, 3), kind, round(draws.uniform(low, high), 3), draws.random(), draws.random()))
        at += draws.expovariate(1 / spacing)
    return faults


def _fits(fault, plan):
    has = {"torch": plan.torch, "hosts": bool(plan.hosts), "disk": plan.disk}
    return all(has[need] for need in KINDS[fault.kind][0]) and not (fault.kind == "change-policy" and plan.settings["policy.name"].startswith("local"))


def _limit_losses(plan):
    lost = 0
    kept = []
    for fault in plan.faults:
        lost += fault.kind in LOSSES
        if fault.kind not in LOSSES or lost <= MOST_LOSSES:
            kept.append(fault)
    plan.faults = kept
