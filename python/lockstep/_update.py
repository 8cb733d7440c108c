"""Updates that the script's own optimizer makes: any of torch.optim or of one's own, with any scheduler that follows updates.

When a round is committed the session hands out its mean gradient; the optimizer steps with that, on every worker alike. The
optimizer's state lies in the session's memory, which workers that join and checkpoints are given. Tensors are views of it, numbers
are copied in and out. Two steps on arbitrary gradients, before the job, show which state there is.

The session's memory for state is a multiple of the parameters' size. State that does not fit, and the numbers, lie in an *extra*
tensor behind the parameters, whose gradient is zero. Its first value is the number of updates before this state. If that is 0, the
optimizer begins as it does without lockstep. The objects that `job.after_update` keeps (_after.py) have their values there, too.

The session's memory holds FP32 values, and a checkpoint with a value that is infinite or not a number is not kept. So values of
another type (int, float64, uint8, ...) are spread: each two bytes lie in the low half of four, which always make a finite number.
"""

import hashlib
import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler

from lockstep import _after, _given, _model, _several
from lockstep._errors import JobFailed, UsageError

# Of a parameter group, what a scheduler may set; it follows the count of updates.
_SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "max_momentum", "base_momentum")
_FOLLOWED = (*_SCHEDULED, "betas")  # what of it is set anew where the count has gone back
_STEPS_KEPT = 64  # a round that is computed again is one of the last few
_TRIALS = 2  # steps; what is kept for the second one was not there in the first
_TRIAL_GRADIENT = 1e-3
_GROUPS_SHOWN = 3  # of an optimizer, to people
_MOST_WORDS = 400  # characters of its options; their digest is behind them
_LAYOUT = 2  # version of how the state lies in the session's memory
_MOST_EXTRA = 8  # the part of the parameters that the extra tensor may be as large as, before there is a whole tensor of state more


@dataclass(frozen=True)
class _Entry:
    """Something that the optimizer keeps: of a parameter, or (`parameter` below 0) of a group. Or something that functions keep,
    which is of neither."""

    parameter: int
    group: int
    key: str
    kind: type  # torch.Tensor, int, float or bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    on_host: bool = True  # where the session's memory is a GPU's, too

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    @property
    def spread(self) -> bool:
        return self.dtype is not torch.float32

    @property
    def words(self) -> int:
        """The number of words of four bytes that it takes in the session's memory."""
        return -(-self.bytes // 2) if self.spread else self.bytes // 4

    def read(self, words: torch.Tensor) -> torch.Tensor:
        """The value of these int32: a copy if it is spread, else a view."""
        halves = words.view(torch.int16)[::2]
        data = halves.contiguous().view(torch.uint8)[: self.bytes] if self.spread else words
        return data.view(self.dtype).view(self.shape)

    def write(self, value: torch.Tensor) -> torch.Tensor:
        """The value as int32."""
        if not self.spread:
            return value.reshape(-1).view(torch.int32)
        words = torch.zeros(self.words, dtype=torch.int32, device=value.device)
        halves = words.view(torch.int16)[::2]
        data = value.reshape(-1).view(torch.uint8)
        if self.bytes % 2:
            data = torch.cat([data, data.new_zeros(1)])
        halves.copy_(data.view(torch.int16))
        return words


@dataclass(frozen=True)
class _Place:
    extra: bool  # in the extra tensor, else in the state
    at: int  # of how many words


class Schedule:
    """A scheduler that is stepped by the updates."""

    settings: dict[str, object] = {}  # noqa: RUF012

    def __init__(
        self, scheduler: lr_scheduler.LRScheduler, optimizer: torch.optim.Optimizer, updates: int, steps_in_epoch: bool | None
    ) -> None:
        """`updates`: in an epoch. `steps_in_epoch`: the script calls it once in each; None: its first steps tell."""
        name = type(scheduler).__name__
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            raise UsageError(f"the scheduler {name} follows a metric, and a job's rates follow updates: say them as {_given.RATES}")
        if not isinstance(scheduler, lr_scheduler.LRScheduler):
            rates = _given.RATES_OF_TIMM if hasattr(scheduler, "_get_lr") else _given.RATES
            raise UsageError(f"the scheduler {name} is none of torch.optim.lr_scheduler: give job.prepare its rates as {rates}")
        if scheduler.optimizer is not optimizer:
            raise UsageError("the scheduler is of another optimizer than job.prepare was given")
        if getattr(scheduler, "last_epoch", 0) > 0:
            raise UsageError("the scheduler has stepped already: make a new one")
        self.steps_in_epoch = steps_in_epoch
        self.tells = steps_in_epoch is None
        """The script shows when it steps."""
        self._in_epoch = updates
        self.scheduler = scheduler
        self._every = updates if steps_in_epoch else 1
        # One with an end refuses to go beyond it, and a job that leaves contributions out has more updates than it was told of.
        ends = getattr(scheduler, "total_steps", None)
        self._last = ends - 1 if isinstance(ends, int) else math.inf
        self._steps = self._shown = 0
        self._values: dict[int, list[dict[str, Any]]] = {}  # of the groups, after so many steps
        self._keep()

    def check(self, config: dict[str, str], batch: int) -> None:
        """Its epochs were counted in updates of the script's batch; the job's config may say another one."""
        if self.steps_in_epoch and (theirs := int(config["job.global_batch"])) != batch:
            raise UsageError(
                f"the job has global_batch {theirs}, as its config says, and the scheduler's epochs were counted in updates of "
                f"{batch}: give global_batch={theirs} to job.prepare"
            )

    def begin(self, updates: int) -> None:
        """`updates`: in an epoch of the job."""
        self._in_epoch = updates

    def decide(self, *, steps_in_epoch: bool) -> None:
        """The script has shown it."""
        if self.steps_in_epoch is None:
            self.steps_in_epoch = steps_in_epoch
            self._every = self._in_epoch if steps_in_epoch else 1

    def advance(self, update: float) -> None:
        """To what holds after so many updates: ahead, or back to one of the last, as where a round is computed again."""
        wanted = int(min(update // self._every, self._last))
        if wanted > self._steps:
            self._show(self._steps)  # each step follows from the one before
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no step was seen between two of its own
            while self._steps < wanted:
                self.scheduler.step()
                self._steps += 1
                self._keep()
        self._show(wanted)

    def _keep(self) -> None:
        groups = self.scheduler.optimizer.param_groups
        self._values[self._steps] = [{key: _copy(group[key]) for key in _FOLLOWED if key in group} for group in groups]
        self._values.pop(self._steps - _STEPS_KEPT, None)
        self._shown = self._steps

    def _show(self, step: int) -> None:
        if step == self._shown:
            return
        if step not in self._values:
            raise JobFailed(f"the scheduler is {self._steps - step} steps ahead of the job, and cannot go back that far")
        for group, values in zip(self.scheduler.optimizer.param_groups, self._values[step], strict=True):
            for key, value in values.items():
                if isinstance(group[key], torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value
        self._shown = step


class Updates:
    """The script's optimizer as the maker of the job's updates. `of`: its parameters."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        of: list[torch.nn.Parameter],
        ahead: int,
        schedule: Schedule | None,
        after: _after.After,
    ) -> None:
        """`ahead`: how many values lie ahead of the extra tensor. `after`: functions of the script for each update."""
        self._optimizer = optimizer
        self._step = optimizer.step  # the script's view of it is about to be taken away
        self._batch = 1  # of a whole round
        self._schedule = schedule
        self._parameters = of
        parts = optimizer.parts if isinstance(optimizer, _several.Together) else (optimizer,)
        self._name = " and ".join(type(part).__name__ for part in parts)
        _refuse_unsupported(optimizer)
        trained = set(map(id, of))
        # Some make a state for them, which stays as it is: they have no gradient.
        self._frozen = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in trained]
        # What some have before their first step, or all that were given a state.
        self._first = {p: {key: _copy(value) for key, value in state.items()} for p, state in optimizer.state.items()}
        self._nothing: list[tuple[int, str]] = []  # keys of a parameter's state that are there and None
        self._entries = self._find_entries()
        self._own = len(self._entries)  # the others are what functions keep
        self._after = after
        self._begun_with: list[Any] = []  # what they keep before the first update
        self._entries += self._kept_entries()
        # The extra tensor begins where the parameters end, and the count is where its size is a divisor of the place.
        self._origin = 4 * ahead
        self._places, self.state_tensors, self.extra = _lay_out(self._entries, ahead)
        self._views: list[torch.Tensor] = []  # int32 of the session's memory
        self._near: list[torch.Tensor] = []  # what the optimizer has of them
        self._at: tuple[int, int] | None = None
        self._state: torch.Tensor | None = None

    def digest(self) -> str:
        """Workers in which it differs cannot be in one job."""
        said = hashlib.sha256(repr([_LAYOUT, self._name, self._entries, self.state_tensors]).encode())
        words = []
        for group in self._optimizer.param_groups:
            shown = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in group.items() if k != "initial_lr"}
            plain = {k: v for k, v in shown.items() if isinstance(v, int | float | str | tuple)}
            said.update(f"{len(group['params'])} {sorted(plain.items())}".encode())
            words.append(_in_words(plain))
        for data in _model.digest_inputs(list(state.values()) for state in self._first.values()):
            said.update(data)
        for data in _model.digest_inputs(self._begun_with):
            said.update(data)
        more = [f"{len(words) - _GROUPS_SHOWN} groups more"] if len(words) > _GROUPS_SHOWN else []
        text = f"; updates by {self._name}({' | '.join(words[:_GROUPS_SHOWN] + more)}) {said.hexdigest()[:16]}"
        if self._schedule is None:
            return text
        scheduler = self._schedule.scheduler
        numbers = {k: v for k, v in vars(scheduler).items() if isinstance(v, int | float | str)}
        digest = hashlib.sha256(str(sorted(numbers.items())).encode()).hexdigest()
        return f"{text}; rates by {type(scheduler).__name__}({_in_words(numbers)}) {digest[:16]}"

    def settle(self, batch: int) -> None:
        """The job is joined. `batch`: samples that a whole round of it has."""
        self._batch = batch
        self._begun_with = [_copy(value) for value in self._after.values()]  # worker 0's, by now

    def advance(self, update: float) -> None:
        """The rates are those of this update, which is being computed: behind so many of whole rounds."""
        if self._schedule is not None:
            self._schedule.advance(update)

    def make(
        self,
        extra: torch.Tensor,
        state: torch.Tensor | None,
        factor: float,
        *,
        position: float,
        samples: int,
        own_rates: tuple[float, ...] | None = None,
    ) -> None:
        """The update, with the gradients that the parameters have. `extra`, `state`: the session's. `factor`: of the rates.
        `position`: of the schedule. `samples`: in the update. `own_rates`: that the script has set for it."""
        at = extra.data_ptr(), 0 if state is None else state.data_ptr()
        if at != self._at:
            self._views, self._at, self._state = list(self._cut(extra, state)), at, state
        count = self.count_in(extra)
        updates = int(count.item())
        self._bring()
        self.advance(position)
        if updates == 0:
            self._begin()
        else:
            self._load()
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group, rate in zip(self._optimizer.param_groups, own_rates or rates, strict=True):
            group["lr"] = rate * factor if factor != 1 else rate
        stepped = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._step()
        if stepped != [float(group["lr"]) for group in self._optimizer.param_groups]:
            raise UsageError(f"{self._name} changes its own rate, which is not supported: a scheduler may")
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._store()
        if not self._after.there_is:
            self._put_back()
        count.fill_(updates + 1)
        self.advance(position_after(position, samples, self._batch))

    def finish(self, extra: torch.Tensor) -> None:
        """Behind `make`, where the script has functions for that: calls them, once the model is as after the update."""
        updates = int(self.count_in(extra).item())
        kept = self._near[self._own :]
        if self._after.keeps:
            self._after.put(self._begun_with if updates == 1 else self._of_kinds(kept))
        self._after.call(updates)
        for entry, view, value in zip(self._entries[self._own :], kept, self._after.values(), strict=True):
            if entry != self._kept_entry(entry.key, value):
                raise UsageError(f"job.after_update: {entry.key} of what is kept is of another kind or size than at job.prepare")
            if isinstance(value, torch.Tensor):
                view.copy_(value.detach())
            else:
                view.fill_(value)
        self._put_back()
        if updates > _STEPS_KEPT:  # no round before that is computed again
            self._begun_with = []

    def show_kept(self, extra: torch.Tensor) -> bool:
        """Gives the kept objects the values that belong to the parameters, which this worker may have copied. False: they are not
        known, for there was no update here."""
        if not self._after.keeps or int(self.count_in(extra).item()) == 0:
            return True
        if self._at is None:
            return False
        at = extra.data_ptr(), self._at[1]
        if at != self._at:
            self._views, self._at = list(self._cut(extra, self._state)), at
        self._bring()
        self._after.put(self._of_kinds(self._near[self._own :]))
        return True

    def _of_kinds(self, near: list[torch.Tensor]) -> list[Any]:
        pairs = zip(self._entries[self._own :], near, strict=True)
        return [value if entry.kind is torch.Tensor else entry.kind(value.item()) for entry, value in pairs]

    def _kept_entries(self) -> list[_Entry]:
        return [self._kept_entry(str(number), value) for number, value in enumerate(self._after.values())]

    @staticmethod
    def _kept_entry(key: str, value: Any) -> _Entry:
        if isinstance(value, torch.Tensor):
            return _Entry(-1, -1, key, torch.Tensor, value.dtype, tuple(value.shape), value.device.type == "cpu")
        return _Entry(-1, -1, key, bool if isinstance(value, bool) else _number(value)[0], *_number(value)[1:])

    def detach(self) -> None:
        """The optimizer keeps what it has in memory of its own."""
        for state in self._optimizer.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[key] = value.clone()
        self._views, self._near, self._at, self._state = [], [], None, None

    # --- what it keeps

    def _find_entries(self) -> list[_Entry]:
        """Finds the state by two steps, and undoes them. Changes elsewhere are refused, as only this worker would have them."""
        optimizer = self._optimizer
        self._begin()  # what the script has of its state stays as it is
        values = [p.detach().clone() for p in self._parameters]
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        own, frozen = _kept_elsewhere(optimizer), self._shown_of_frozen()
        entries: list[_Entry] = []
        step: Any = type(optimizer).plain_step if isinstance(optimizer, _several.Together) else type(optimizer).step
        if getattr(step, "hooked", False):  # torch's own wrapping, which calls step hooks: they are for updates
            step = step.__wrapped__
        for trial in range(_TRIALS):
            for p in self._parameters:
                p.grad = torch.full_like(p, _TRIAL_GRADIENT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step(optimizer)
            found = list(self._entries_now())
            if trial > 0 and found != entries:
                raise UsageError(f"{self._name} keeps something else after its second step than after its first: not supported")
            entries = found
        after = _kept_elsewhere(optimizer)
        changed = [key for key in own | after if own.get(key) != after.get(key)]
        if frozen != self._shown_of_frozen():
            raise UsageError(f"{self._name} changes the state of frozen parameters: give it those that are trained alone")
        if changed:
            raise UsageError(
                f"{self._name} keeps {changed[0]} outside of its state, and not as a number of a parameter group, which is not "
                "supported: workers that join and checkpoints would not have it"
            )
        self._begin()
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.update(before)
        with torch.no_grad():
            for p, value in zip(self._parameters, values, strict=True):
                p.copy_(value)
                p.grad = None
        return entries

    def _shown_of_frozen(self) -> object:
        return [_shown(self._optimizer.state.get(p)) for p in self._frozen]

    def _begin(self) -> None:
        self._optimizer.state.clear()
        for p, state in self._first.items():
            self._optimizer.state[p] = {key: _copy(value) for key, value in state.items()}

    def _entries_now(self) -> Iterator[_Entry]:
        numbers = {id(p): i for i, p in enumerate(self._parameters)}
        self._nothing = []
        for number, group in enumerate(self._optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and key not in _SCHEDULED:
                    yield _Entry(-1, number, key, *_number(value))
        for p in self._parameters:
            for key, value in self._optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    if value.layout is not torch.strided or value.device not in (p.device, torch.device("cpu")):
                        raise UsageError(f"{self._name} keeps {key} as a {value.layout} tensor on {value.device}: not supported")
                    on_host = value.device.type == "cpu"
                    yield _Entry(numbers[id(p)], -1, key, torch.Tensor, value.dtype, tuple(value.shape), on_host)
                elif isinstance(value, int | float):
                    yield _Entry(numbers[id(p)], -1, key, *_number(value))
                elif value is None:
                    self._nothing.append((numbers[id(p)], key))
                else:
                    raise UsageError(f"{self._name} keeps {key} as {type(value).__name__}: not supported, only tensors and numbers")
        if len(self._states()) > sum(p in self._optimizer.state for p in self._parameters):
            raise UsageError(f"{self._name} keeps a state that is of none of its parameters, which is not supported")

    def _cut(self, extra: torch.Tensor, state: torch.Tensor | None) -> Iterator[torch.Tensor]:
        for entry, place in zip(self._entries, self._places, strict=True):
            memory = extra if place.extra else state
            assert memory is not None
            yield memory.view(torch.int32)[place.at : place.at + entry.words]

    def _apart(self) -> list[int]:
        """Entries that are on the host, where the session's memory is a GPU's."""
        pairs = enumerate(zip(self._entries, self._views, strict=True))
        return [i for i, (entry, view) in pairs if entry.on_host and not view.is_cpu]

    def _bring(self) -> None:
        """Makes the state that the step reads. Entries for the host are copied at once, spread entries are copied, others are
        views."""
        words = list(self._views)
        if apart := self._apart():
            brought = torch.cat([self._views[i] for i in apart]).cpu()
            for i, part in zip(apart, torch.split(brought, [self._entries[i].words for i in apart]), strict=True):
                words[i] = part.clone()
        self._near = [entry.read(view) for entry, view in zip(self._entries, words, strict=True)]

    def _put_back(self) -> None:
        """As `_bring`, the other way."""
        apart = self._apart()
        if apart:
            near = torch.cat([self._entries[i].write(self._near[i]) for i in apart]).to(self._views[apart[0]].device)
            for i, part in zip(apart, torch.split(near, [self._entries[i].words for i in apart]), strict=True):
                self._views[i].copy_(part)
        brought = set(apart)
        for i, entry in enumerate(self._entries):
            if entry.spread and i not in brought:
                self._views[i].copy_(entry.write(self._near[i]))

    def count_in(self, extra: torch.Tensor) -> torch.Tensor:
        """How many updates the parameters are after, of which this is the extra tensor."""
        at = _first(self._origin)
        return extra.view(torch.uint8)[at : at + 8].view(torch.int64)

    def _keeper(self, entry: _Entry) -> dict[str, Any]:
        if entry.parameter < 0:
            return self._optimizer.param_groups[entry.group]
        state: dict[str, Any] = self._optimizer.state[self._parameters[entry.parameter]]
        return state

    def _states(self) -> list[dict[str, Any]]:
        """All but those of frozen parameters."""
        frozen = set(map(id, self._frozen))
        return [state for key, state in self._optimizer.state.items() if id(key) not in frozen]

    def _load(self) -> None:
        for entry, view in zip(self._entries[: self._own], self._near, strict=False):
            self._keeper(entry)[entry.key] = view if entry.kind is torch.Tensor else entry.kind(view.item())
        for number, key in self._nothing:
            self._optimizer.state[self._parameters[number]].setdefault(key, None)

    def _store(self) -> None:
        """Optimizers that make new tensors instead of writing to theirs are given the session's memory again."""
        for entry, view in zip(self._entries[: self._own], self._near, strict=False):
            keeper = self._keeper(entry)
            value = keeper.get(entry.key)
            if entry.kind is not torch.Tensor:
                if not isinstance(value, int | float) or (entry.kind is int and value != int(value)):
                    raise UsageError(f"{self._name} has made {value!r} of {entry.key}, which was of another kind in its first step")
                view.fill_(value)
            elif value is not view:
                if not isinstance(value, torch.Tensor) or value.shape != view.shape or value.dtype != view.dtype:
                    raise UsageError(f"{self._name} has made something else of {entry.key} than in its first step: not supported")
                view.copy_(value)
                keeper[entry.key] = view
        known = sum(entry.parameter >= 0 for entry in self._entries[: self._own])
        if known != sum(value is not None for state in self._states() for value in state.values()):
            raise UsageError(f"{self._name} keeps more than after its first step, which is not supported")


def position_after(position: float, samples: int, batch: int) -> int:
    """Of the schedule, in whole rounds of `batch` samples, after a round of so many: an epoch's last one is whole, however many it
    has. Counted in samples: a sum of their parts of a batch may be a little more than a whole number."""
    return -(-(round(position * batch) + samples) // batch)


def _in_words(options: Mapping[str, object]) -> str:
    """Those that say something; without what separates the parts of a digest."""
    shown = [f"{key}={value}" for key, value in sorted(options.items()) if not key.startswith("_") and value is not False]
    return ", ".join(shown).replace(";", ",")[:_MOST_WORDS]


def _refuse_unsupported(optimizer: torch.optim.Optimizer) -> None:
    for part in optimizer.parts if isinstance(optimizer, _several.Together) else ():
        _refuse_unsupported(part)
    name = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure is not None and closure.default is inspect.Parameter.empty):
        raise UsageError(
            f"{name} wants a closure, that computes the loss again, and a job computes it once: take one that wants none, as "
            "torch.optim.AdamW(model.parameters(), lr=0.001)"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError(
            f"{name} is for sparse gradients, and those of a job are dense: take torch.optim.Adam(model.parameters(), lr=0.001), "
            "and nn.Embedding without sparse=True"
        )
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise UsageError(f"{name}(differentiable=True) is not supported: leave differentiable out")


def _kept_elsewhere(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """The values of an optimizer besides its state and the numbers of its groups, in a form that can be compared."""
    if isinstance(optimizer, _several.Together):
        of_parts = [_kept_elsewhere(part) for part in optimizer.parts]
        return {f"{key} of optimizer {number}": value for number, kept in enumerate(of_parts) for key, value in kept.items()}
    torchs = set(vars(torch.optim.SGD([torch.zeros(1)], lr=1.0)))  # hooks, and what else each of them has
    kept = {key: _shown(value) for key, value in vars(optimizer).items() if key not in torchs and not callable(value)}
    for number, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key == "params" or key in _SCHEDULED or (isinstance(value, int | float) and not isinstance(value, bool)):
                continue
            kept[f"{key} of group {number}"] = _shown(value)
    return kept


def _shown(value: Any, depth: int = 6) -> object:
    """A form of the value that is equal if the value is, made of its parts to some depth."""
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        return str(data.dtype), tuple(data.shape), data.view(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
    if isinstance(value, torch.Generator):
        return _shown(value.get_state())
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if depth == 0:
        return type(value).__name__
    if isinstance(value, Mapping):
        return {repr(key) if not isinstance(key, torch.Tensor) else id(key): _shown(one, depth - 1) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, Iterator):
        return [_shown(one, depth - 1) for one in value]
    return type(value).__name__, {key: _shown(one, depth - 1) for key, one in getattr(value, "__dict__", {}).items()}


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _number(value: float) -> tuple[type, torch.dtype, tuple[int, ...]]:
    return (float, torch.float64, ()) if isinstance(value, float) else (int, torch.int64, ())


def _first(origin: int) -> int:
    """The first place in the extra tensor that a number of 8 bytes may have."""
    return -origin % 8


def _lay_out(entries: list[_Entry], parameters: int) -> tuple[list[_Place], int, int]:
    """Where each lies, how many tensors of state there are, each as long as the parameters, and the length of the extra one."""
    large = sum(entry.words for entry in entries if entry.shape)
    tensors = large // parameters
    while True:
        places, state, extra = [], 0, _first(4 * parameters) // 4 + 2  # behind the count
        for entry in entries:
            if entry.shape and 0 < entry.words <= parameters * tensors - state:
                places.append(_Place(False, state))
                state += entry.words
            else:
                places.append(_Place(True, extra))
                extra += entry.words
        numbers = sum(entry.words + 2 for entry in entries if not entry.shape)
        if extra <= numbers + 4 + parameters / _MOST_EXTRA:
            return places, tensors, extra
        tensors += 1
