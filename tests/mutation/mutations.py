"""Faults that are put into the program on purpose, to see that the tests find them.

Each changes one place by exact text replacement: `old` must stand in `file` exactly once. `run` names the suites of
run.py that are tried, in this order, until one fails.
"""

from dataclasses import dataclass

COORDINATOR = ("unit", "golden", "conversations", "sim", "faults", "property")
WORKER = ("worker", "conversations", "sim", "faults", "property")


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    run: tuple[str, ...] = COORDINATOR


MUTATIONS = [
    # What a round is: sums, moves, quorum, scalars.
    Mutation(
        "the parts are summed in another order",
        "coordinator/round/open_round.cc",
        "return std::tie(a.worker, a.part) < std::tie(b.worker, b.part);",
        "return std::tie(a.worker, a.part) > std::tie(b.worker, b.part);",
    ),
    Mutation(
        "units that are given back stay with their worker too, and count twice",
        "coordinator/round/worker_share.cc",
        "  queue.erase(from, to);\n",
        "",
    ),
    Mutation(
        "the quorum is one less",
        "coordinator/job/context.cc",
        "members.CountPresent() >= min_workers();",
        "members.CountPresent() + 1 >= min_workers();",
    ),
    Mutation(
        "the mean is over samples, whatever a part counts for",
        "coordinator/round/commit_draft.cc",
        "    divisor += sealed.divisor;\n",
        "    divisor += part.samples;\n",
    ),
    Mutation(
        "a worker that is away is lost like any other",
        "coordinator/membership/liveness.cc",
        "  if (member.away()) return;\n",
        "",
    ),
    Mutation(
        "half of the digests are a majority",
        "coordinator/round/digest_votes.cc",
        "if (2 * leading.agreeing > std::max",
        "if (2 * leading.agreeing >= std::max",
    ),
    Mutation(
        "a receipt for an old map of owners counts",
        "coordinator/round/round_work.cc",
        "  if (receipts.map_version < plan_.owners.version || !delivery_.IsOwner(from.worker)) return {};\n",
        "  if (!delivery_.IsOwner(from.worker)) return {};\n",
    ),
    Mutation(
        "a fenced contribution counts",
        "coordinator/round/round_work.cc",
        "return share == nullptr || WorkerViewAt(*share).fenced ? nullptr : share;",
        "return share;",
    ),
    Mutation(
        "the learning rate is that of the update before",
        "coordinator/round/commit_draft.cc",
        "commit.position = planner.SchedulePosition(sampler, commit.update - 1);",
        "commit.position = planner.SchedulePosition(sampler, commit.update > 1 ? commit.update - 2 : 0);",
    ),
    Mutation(
        "the schedule goes by rounds where these close over less",
        "coordinator/round/sampler.cc",
        "static_cast<double>(counted()) / static_cast<double>(round_samples_);",
        "static_cast<double>((counted() + round_samples_ - 1) / round_samples_);",
    ),
    Mutation(
        "a worker that finishes no unit is never lost",
        "coordinator/membership/liveness.cc",
        "  if (idle >= patience) job_->Evict",
        "  if (idle >= patience && false) job_->Evict",
    ),
    Mutation(
        "a worker that applies an attempt does not notice that another one takes its place",
        "worker/core/core.cc",
        "      update->attempt != commit.attempt) {\n",
        "      update->attempt != commit.attempt && false) {\n",
        WORKER,
    ),
    # Of our own: the round core.
    Mutation(
        "what was published in an attempt before counts for the next",
        "coordinator/round/committed_round.cc",
        "  if (message.attempt < commit_.attempt) return {};\n  const Result<",
        "  const Result<",
    ),
    Mutation(
        "a worker that promised not to apply is taken for a holder",
        "coordinator/round/committed_round.cc",
        "slot.answer = message.holds_all ? Answer::kYes : Answer::kNo;",
        "slot.answer = Answer::kYes;",
    ),
    Mutation(
        "a further attempt settles the round a second time",
        "coordinator/round/pipeline.cc",
        "std::move(draft.before)",
        "Sampler(draft.after)",
    ),
    Mutation(
        "a worker that came back is taken for the one that contributed",
        "coordinator/round/committed_round.cc",
        "  return member == nullptr || !member->live() || Contains(been_out_, id);\n",
        "  return member == nullptr || !member->live();\n",
    ),
    Mutation(
        "a record calls dropped what is requeued",
        "coordinator/core/from_round.cc",
        "(closed.follows ? record.requeued : record.dropped)",
        "(closed.follows ? record.dropped : record.requeued)",
    ),
    Mutation(
        "a checkpoint has the state from before its round",
        "coordinator/core/checkpointer.cc",
        "  current_->state.totals = job_->closed().totals;\n  SaveIfPossible();\n",
        "  SaveIfPossible();\n",
    ),
    Mutation(
        "owners with a broken edge are named again",
        "coordinator/round/open_round.cc",
        "ReplaceOwners({}, why, avoided);\n",
        "ReplaceOwners({}, why);\n",
    ),
    Mutation(
        "a job that stops in a round that is open again forgets which one",
        "coordinator/round/pipeline.cc",
        "    abandoned_ = round;\n",
        "",
    ),
    # Of our own: the worker core.
    Mutation(
        "contributions are let go one round early",
        "worker/core/own_work.cc",
        "    if (c.round < commit.round) c.dropped = true;\n",
        "    if (c.round <= commit.round) c.dropped = true;\n",
        WORKER,
    ),
    Mutation(
        "parameters change while a unit reads them",
        "worker/core/replicated_updates.cc",
        "    if (!parameters_.level() || parameters_.update() || InUse() ||\n",
        "    if (!parameters_.level() || parameters_.update() ||\n",
        WORKER,
    ),
    Mutation(
        "a joiner is level when its buckets are, at whatever round",
        "worker/core/catch_up.cc",
        "    if (!IsAt(version, next)) return std::nullopt;\n",
        "    if (!version) return std::nullopt;\n",
        WORKER,
    ),
    Mutation(
        "a promise not to apply is forgotten",
        "worker/core/round_sums.cc",
        "  (holds ? named_ : fenced_) = true;\n",
        "  if (holds) named_ = true;\n",
        WORKER,
    ),
    Mutation(
        "a buffer that is served is free to be written",
        "worker/core/buffer_leases.cc",
        "  if (fetches_.contains(buffer) || ServedOf(buffer)) return true;\n",
        "  if (fetches_.contains(buffer)) return true;\n",
        WORKER,
    ),
    Mutation(
        "the pages of a share that is gone stay beside those of the new one",
        "worker/core/buffer_leases.cc",
        "  context_.Emit(action::GiveBack{buffer, {kept.begin(), kept.end()}});\n",
        "",
        WORKER,
    ),
    Mutation(
        "staging is given back with what is still needed in it",
        "worker/core/inputs.cc",
        "    buffers_.Fit(staging, shape, input.have.Ranges());\n",
        "    buffers_.Fit(staging, shape);\n",
        WORKER,
    ),
    # A coordinator that takes over.
    Mutation(
        "a coordinator that takes over believes whatever a worker says it holds",
        "coordinator/core/reattachment.cc",
        "return member.ready.held == entry.held() &&",
        "return member.ready.held.has_value() &&",
    ),
    Mutation(
        "a worker forgets what it holds when the next coordinator dies at once",
        "worker/core/core.cc",
        "!parameters_.started() && checkpoint_bytes_ == 0 && context_.config.held",
        "!parameters_.started() && checkpoint_bytes_ == 1 && context_.config.held",
        WORKER,
    ),
    Mutation(
        "a coordinator that takes over goes on without a shard",
        "coordinator/core/reattachment.cc",
        "held = std::ranges::none_of(holders, [](const auto& of) { return of.empty(); });",
        "held = true;",
    ),
    Mutation(
        "a holder applies what was not decided",
        "worker/core/holdings.cc",
        "if (decided->next != round.Next() || *decided->attempt != attempt) return;",
        "if (decided->next != round.Next()) return;",
        WORKER,
    ),
    Mutation(
        "receipts are awaited of those that have mapped each other in the midst of a round",
        "coordinator/round/pipeline.cc",
        "    open_->NoteMapped(from.id, peer->id);\n",
        "",
    ),
]
