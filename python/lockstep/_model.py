"""A model's parameters as one run of FP32 values, and what of a model is not supported.

The session keeps the parameters and the gradient sums; `p.data` and `p.grad` become views of its memory. They are made once for
each buffer and set anew where the buffer is another one. A view keeps that memory, wherever the script has put it.
"""

import ctypes
import dataclasses
import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import nn

from lockstep import _device, _given, _hooks, _rest
from lockstep._errors import UsageError
from lockstep._session import Group, Tensor

_MOST_BUFFERS = 64  # of gradients, of which views are kept; a session has fewer
_LOOKED_AT = 1024  # values of the parameters that are compared after each run; at least so many of each one:
_LOOKED_AT_OF_EACH = 2
_SHOWN = 3  # parameters that a message names


def refuse_unsupported(model: nn.Module) -> None:
    for name in ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"):
        for module in model.modules():
            if type(module).__name__ == name:
                raise UsageError(
                    f"the model has a {name} inside: leave that out, lockstep takes its place"
                    f"{', or wrap last, DistributedDataParallel(torch.compile(model))' if name.startswith('Distributed') else ''}"
                )
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise UsageError(f"{name or 'the model'} is SyncBatchNorm: use BatchNorm, whose running statistics the job averages")


def is_compiled(model: nn.Module) -> bool:
    """By torch.compile, in whole or in part."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _own_name(name: str) -> str:
    """Without what torch.compile puts into it: checkpoints are for the model as it was."""
    return name.replace("_orig_mod.", "")


def _norms(model: nn.Module, *, training: bool = True) -> Iterator[tuple[str, nn.Module]]:
    """Those that have running statistics, which change in training."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.training is training and module.running_mean is not None:
            yield _own_name(f"{name}.") if name else "", module


class Parameters:
    """The parameters of a model that the optimizer has, in the model's order. Behind them are further values of the job: the
    running statistics of norms (`averaged`), and the extra values of updates.

    Running statistics are the round's weighted mean: each run begins with those of its round's parameters and contributes what it
    has made of them, times its samples.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        wanted = {id(p) for group in optimizer.param_groups for p in group["params"]}
        named = [(_own_name(name), p) for name, p in model.named_parameters() if id(p) in wanted and p.requires_grad]
        self._frozen = [(_own_name(name), p) for name, p in model.named_parameters() if id(p) in wanted and not p.requires_grad]
        if wanted - {id(p) for p in model.parameters()}:
            raise UsageError("the optimizer has parameters that the model does not have")
        if not named:
            raise UsageError("the optimizer has no parameter of the model that is trained")
        _refuse_parameters(named)
        self._model = model
        self._modules = list(model.modules())
        self.tensors = [Tensor(name, tuple(p.shape)) for name, p in named]
        self.list: list[nn.Parameter] = [p for _, p in named]
        self.moves_without_gradient = True  # by the optimizer, which has momentum, weight decay or something of its own
        self._shapes = [(p.numel(), p.shape) for p in self.list]
        self._at = 0
        self._views: list[torch.Tensor] = []  # of what the parameters are to be, where they are now
        self._begun: torch.Tensor | None = None  # the values that they have until the job's first ones are there
        self._looked_at: tuple[torch.Tensor, list[int]] | None = None  # places among all values, and of how many of each parameter
        self._sample = torch.empty(0)  # of the values, at those places
        self._whole: torch.Tensor | None = None  # a sum over all values, where it was taken
        self._gradients: dict[int, tuple[torch.Tensor, list[torch.Tensor], list[int]]] = {}  # with the addresses of the views
        self._gradient: torch.Tensor | None = None
        self._gradient_views: list[torch.Tensor] = []
        self._gradient_at: list[int] = []
        self._flat = self._update_gradient = torch.empty(0)
        self._update_views: list[torch.Tensor] = []
        self._update_at = 0
        self._versions: tuple[int, ...] = ()
        self.averaged: list[str] = []
        # By module and key: conversions of a model (half(), cpu()) make other tensors of its buffers.
        self._averaged: list[tuple[nn.Module, str]] = []
        self._counters: list[tuple[nn.Module, str, int]] = []  # and what the model came with
        averaged: list[tuple[str, torch.Tensor]] = []
        of_job: set[int] = set()
        for name, norm in _norms(model):
            for key, buffer in norm.named_buffers(recurse=False):
                of_job.add(id(buffer))
                if buffer.is_floating_point():
                    _refuse_parameter(name + key, buffer)
                    averaged.append((name + key, buffer))
                    self._averaged.append((norm, key))
                elif not isinstance(norm, nn.modules.instancenorm._InstanceNorm):  # which has a count and leaves it alone
                    self._counters.append((norm, key, int(buffer.item())))
        self.averaged = [name for name, _ in averaged]
        self.tensors += [Tensor(name, tuple(buffer.shape)) for name, buffer in averaged]
        evaluating = {
            id(buffer): name.rstrip(".") or "the model"
            for name, norm in _norms(model, training=False)
            for buffer in norm.buffers(recurse=False)
        }
        trained = set(map(id, self.list))
        self._rest = _rest.Rest(
            [
                dataclasses.replace(part, name=_own_name(part.name), norm=evaluating.get(id(tensor), ""))
                for part, tensor in _rest.parts_of(model)
                if id(tensor) not in trained | of_job
            ]
        )
        self.device = _device.of([*named, *averaged])
        self._trained = sum(p.numel() for p in self.list)
        self.count = self._trained + sum(buffer.numel() for _, buffer in averaged)  # without the extra ones
        self._extra = self._marks = 0
        self._updates: Callable[[torch.Tensor], torch.Tensor] | None = None

    def fewest_samples(self) -> int:
        """In a batch. A norm of one value for each channel has no statistics."""
        return 2 if any(isinstance(norm, nn.BatchNorm1d) for _, norm in _norms(self._model)) else 1

    def set_groups(self, groups: Mapping[int, Group]) -> None:
        """By the parameters' ids; those that are not among them have the job's settings."""
        for at, p in enumerate(self.list):
            if (group := groups.get(id(p))) is not None:
                self.tensors[at] = dataclasses.replace(self.tensors[at], group=group)

    def add_extra(self, values: int, updates: Callable[[torch.Tensor], torch.Tensor], marks: int) -> None:
        """Behind all others; `updates`: how many there have been, according to them. `marks`: so many more, for `mark`."""
        self._extra, self._updates, self._marks = values + marks, updates, marks
        self.tensors.append(Tensor("lockstep.update", (self._extra,)))

    @property
    def averages(self) -> bool:
        """Not all that travels as a gradient is one."""
        return bool(self.averaged) or self._marks > 0

    def mark(self, which: Iterable[int], weight: int) -> int:
        """A run that counts for so much sets these marks; for `check_untouched`."""
        assert self._gradient is not None
        with torch.no_grad():
            for number in which:
                self._gradient[self.count + self._extra - self._marks + number] += weight
        return self._gradient._version

    def marks(self) -> list[float]:
        """Within an update: the share of its round that has set each mark."""
        found: list[float] = self._update_gradient[self.count + self._extra - self._marks :].tolist()
        return found

    def begin(self) -> torch.Tensor:
        """A copy of their values, on the host, that the job begins with. Until its first ones are there they are to stay so."""
        self._views = [p.data for p in self.list]
        values = [*self._views, *self._statistics(), torch.zeros(self._extra)]
        self._begun = torch.cat([value.reshape(-1).cpu() for value in values]).contiguous()
        return self._begun

    def _statistics(self) -> list[torch.Tensor]:
        """The running statistics of the model as it is now."""
        return [getattr(module, key) for module, key in self._averaged]

    def digest_of_the_rest(self) -> str:
        """Of what is not trained, buffers and frozen parameters, which must be the same on all workers; empty: there is none."""
        rest = self._rest.values()
        if not rest:
            return ""
        digest = hashlib.sha256()
        for data in digest_inputs(rest):
            digest.update(data)
        return f"; frozen parameters and buffers {digest.hexdigest()}"

    def use(self, address: int, floats: Callable[[int], torch.Tensor], *, whole: bool = False) -> None:
        """Uses the parameters at `address` from here on; `floats` makes a view of the session's memory. Keeps no view of the old
        buffer, which the session may give back. `whole`: `check_values` looks at each value, not at some of them."""
        if self._begun is not None:
            self.check_values()
            self._begun = None
        if address != self._at:
            self._flat = floats(address)
            self._views = list(self._cut(self._flat))
            for p, view in zip(self.list, self._views, strict=True):
                p.data = view
            self._at = address
        self._load_averaged()
        self._sample, self._whole = self._look(), self._sum() if whole else None
        self._versions = tuple(p._version for p in self.list)
        self._rest.note()

    def check_values(self) -> None:
        """Nobody but the job has changed the parameters since `use` or `begin`. Those that were given other memory with the same
        values, as by double() and float(), are put back. Within a run each change counts that torch has seen; of those that p.data
        hides from it a sample tells. Where `use` was told `whole` it is the values alone: a script may change them and restore
        them, as to evaluate averaged ones."""
        self._check_places()
        if self._begun is not None:
            begun = zip(self.tensors, self._views, self._cut(self._begun), strict=False)
            changed = [tensor.name for tensor, view, value in begun if not _same_bits(view.cpu(), value)]
            if changed:
                self._refuse_changed(changed)
            return
        changed = []
        if self._whole is None and tuple(p._version for p in self.list) != self._versions:
            now = zip(self.tensors, self.list, self._versions, strict=False)
            changed = [tensor.name for tensor, p, version in now if p._version != version]
        elif not torch.equal(self._look(), self._sample):
            assert self._looked_at is not None
            parts = (torch.split(part, self._looked_at[1]) for part in (self._look(), self._sample))
            changed = [tensor.name for tensor, *pair in zip(self.tensors, *parts, strict=False) if not torch.equal(*pair)]
        elif self._whole is None or torch.equal(self._sum(), self._whole):
            return
        self._refuse_changed(changed)

    def check_in_model(self) -> None:
        """They are the model's still."""
        there = {id(p) for p in self._model.parameters()}
        for p, tensor in zip(self.list, self.tensors, strict=False):  # behind them come those that are not trained
            if id(p) not in there:
                raise UsageError(
                    f"{tensor.name} of the model is another parameter than it was in job.prepare (load_state_dict(assign=True)?), "
                    "which the job would not train"
                )

    def _check_places(self) -> None:
        if self._begun is not None or self._whole is not None:  # not after each run: it walks through the whole model
            self.check_in_model()
        if all(map(torch.Tensor.is_set_to, self.list, self._views)):
            return
        for p, view, tensor in zip(self.list, self._views, self.tensors, strict=False):
            now, then = ((t.dtype, t.device, t.shape) for t in (p, view))
            if now != then:
                kinds = [f"{str(t.dtype).removeprefix('torch.')} of {tuple(t.shape)} on {t.device}" for t in (p, view)]
                raise UsageError(
                    f"{tensor.name} was made {kinds[0]} after job.prepare, where it was {kinds[1]}: convert and move a model "
                    "before that, or a copy of it, copy.deepcopy(model).half()"
                )
            if not _same_bits(p.data, view):
                raise UsageError(
                    f"{tensor.name} was given other memory after job.prepare, with other values (model.half() and back rounds "
                    "them): only the job's updates may change parameters. Convert a copy, copy.deepcopy(model).half()"
                )
            p.data = view

    def _refuse_changed(self, names: list[str]) -> None:
        which = f" ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})" if names else ""
        raise UsageError(
            f"parameters were changed by the script after job.prepare{which}: only the job's updates may change them. Load what "
            "the job is to begin with before job.prepare, and all else after the job"
        )

    def _look(self) -> torch.Tensor:
        """At some of the values: their bits."""
        if self._looked_at is None:
            draw = torch.Generator().manual_seed(0)
            of_each = max(_LOOKED_AT_OF_EACH, _LOOKED_AT // len(self.list))
            places, counts, at = [], [], 0
            for size, _ in self._shapes:
                counts.append(min(size, of_each))
                # Of as many equal parts of the parameter one value each, at random.
                parts = torch.arange(counts[-1]) + torch.rand(counts[-1], dtype=torch.float64, generator=draw)
                places.append(at + (parts * (size / max(counts[-1], 1))).long().clamp_(max=max(size - 1, 0)))
                at += size
            self._looked_at = torch.cat(places).to(self._flat.device), counts
        return self._flat.view(torch.int32)[self._looked_at[0]]

    def _sum(self) -> torch.Tensor:
        """Over the bits of all values: it changes where one of them does. Of words of eight bytes, which are added quickest."""
        end = self._trained // 2 * 2
        return torch.stack([self._flat[:end].view(torch.int64).sum(), self._flat[end : self._trained].view(torch.int32).sum()])

    def recount(self) -> None:
        """The model has got worker 0's values since, which its norms count on from."""
        self._counters = [(norm, key, int(getattr(norm, key).item())) for norm, key, _ in self._counters]

    def _load_averaged(self) -> None:
        if not self._averaged and not self._counters:
            return
        assert self._updates is not None
        at = self._trained
        with torch.no_grad():
            for buffer in self._statistics():
                buffer.copy_(self._flat[at : at + buffer.numel()].view(buffer.shape))
                at += buffer.numel()
            updates = int(self._updates(self._flat[self.count :]).item())
            for norm, key, begun in self._counters:
                getattr(norm, key).fill_(begun + updates)

    def update(
        self,
        address: int,
        gradient: int,
        floats: Callable[[int], torch.Tensor],
        *,
        make: Callable[[torch.Tensor], None],
        finish: Callable[[torch.Tensor], None] | None,
        kept: Iterable[torch.Tensor],
    ) -> None:
        """`make` changes the parameters at `address` in place, by the mean gradient at `gradient`. `finish` comes when the running
        statistics are in the model; it may change parameters, and `kept`. Both are given the extra values."""
        self.use(address, floats)
        self.mean_gradients(gradient, floats)
        gradients = [p.grad for p in self.list]
        views = [p.data for p in self.list]
        for p, mean in zip(self.list, self._update_views, strict=True):
            p.grad = mean
        at = [view.data_ptr() for view in self._update_views]
        make(self._flat[self.count :])
        self._put_back(views)
        self._flat[self._trained : self.count] = self._update_gradient[self._trained : self.count]
        self._load_averaged()
        if finish is not None:
            self._rest.note()
            finish(self._flat[self.count :])
            self._put_back(views)
            self._rest.check_but(kept)
        if at != [view.data_ptr() for view in self._update_views]:  # by p.grad.data = ...: they are to be made anew
            self._update_at = 0
        for p, grad in zip(self.list, gradients, strict=True):
            p.grad = grad

    def _put_back(self, views: list[torch.Tensor]) -> None:
        """Parameters that were given other memory instead of other values."""
        for p, view in zip(self.list, views, strict=True):
            if p.data_ptr() != view.data_ptr():
                view.copy_(p.data)
                p.data = view

    def extra(self) -> torch.Tensor:
        """The extra values that belong to the parameters in use."""
        return self._flat[self.count :]

    def mean_gradients(self, address: int, floats: Callable[[int], torch.Tensor]) -> list[torch.Tensor]:
        """Views of an update's mean gradient."""
        if address != self._update_at:
            self._update_gradient = floats(address)
            self._update_views, self._update_at = list(self._cut(self._update_gradient)), address
        return self._update_views

    def own_gradients(self, counted_for: int) -> list[torch.Tensor]:
        """A copy of the gradient of what this worker has added up so far, which counts for so much."""
        assert self._gradient is not None
        return list(self._cut(self._gradient[: self._trained] / max(counted_for, 1)))

    def attach_gradient(self, address: int, floats: Callable[[int], torch.Tensor]) -> None:
        """The next backward pass adds to the values at `address`."""
        self._check_frozen()
        if any(p.grad is not None for p in self.list):
            raise UsageError(
                "there are gradients before job.backward, of another backward pass: it would be lost. Add its loss up, or clear "
                "them (model.zero_grad())"
            )
        self._use_gradient(address, floats)
        for p, view in zip(self.list, self._gradient_views, strict=True):
            p.grad = view

    def add_gradients(self, address: int, floats: Callable[[int], torch.Tensor], which: Iterable[int], weight: int) -> int:
        """Adds those that these parameters have, means over a run that counts for so much, to the values at `address`; for
        `check_untouched`."""
        self._check_frozen(which)
        self._use_gradient(address, floats)
        assert self._gradient is not None
        with torch.no_grad():
            for number in which:
                gradient = self.list[number].grad
                if gradient is not None:
                    self._gradient_views[number].add_(gradient, alpha=weight)
        return self._gradient._version

    def _check_frozen(self, which: Iterable[int] | None = None) -> None:
        """`which`: of the trained parameters are looked at; None: all."""
        for name, p in self._frozen:
            if p.requires_grad:
                raise UsageError(
                    f"{name} was frozen in job.prepare and is not any more, but the job would not train it. To train such "
                    f"parameters later, let them require gradients from the beginning, with {_given.LATER}; or begin another job"
                )
        if self.moves_without_gradient:
            for number in range(len(self.list)) if which is None else which:
                if not self.list[number].requires_grad:
                    raise UsageError(
                        f"{self.tensors[number].name} was frozen after job.prepare, but the optimizer would still move it, by "
                        "momentum or weight decay. Give such parameters a group of their own, and the scheduler a list, as "
                        f"{_given.EARLIER}; or begin another job"
                    )

    def _use_gradient(self, address: int, floats: Callable[[int], torch.Tensor]) -> None:
        if address not in self._gradients:
            if len(self._gradients) >= _MOST_BUFFERS:
                self._gradients.clear()
            flat = floats(address)
            views = list(self._cut(flat))
            self._gradients[address] = flat, views, [view.data_ptr() for view in views]
        self._gradient, self._gradient_views, self._gradient_at = self._gradients[address]

    def hooked(self) -> bool:
        """Whether the script has hooks that see gradients."""
        return _hooks.there_are(self.list, self._modules)

    def check_gradient(self, weight: int) -> int:
        """After the backward pass of a run that counts for so much; for `check_untouched`."""
        assert self._gradient is not None
        for p, tensor in zip(self.list, self.tensors, strict=False):  # behind them come those that are not trained
            view = p.grad
            if view is None or view._base is not self._gradient:
                raise UsageError(f"the gradient of {tensor.name} was put elsewhere by a hook, which is not supported")
        return self.add_statistics(weight)

    def add_statistics(self, weight: int) -> int:
        """Those that a run which counts for so much has made; for `check_untouched`."""
        assert self._gradient is not None
        at = self._trained
        with torch.no_grad():
            for buffer in self._statistics():
                self._gradient[at : at + buffer.numel()].add_(buffer.reshape(-1), alpha=weight)
                at += buffer.numel()
        return self._gradient._version

    def check_untouched(self, gradient_version: int, *, in_place: bool = True) -> None:
        """At the end of a run: only the backward pass has changed the session's memory. `in_place`: gradients are views of it."""
        assert self._gradient is not None
        if self._gradient._version != gradient_version:
            self._refuse_changed_gradients()
        self.check_values()
        if in_place and not self._gradients_in_place():
            self._refuse_changed_gradients()
        self._rest.check()

    @staticmethod
    def _refuse_changed_gradients() -> None:
        raise UsageError(
            "gradients were changed behind job.backward (clip_grad_norm_, a second backward?): they are sums that are not complete "
            "yet. To clip, give clip_grad_norm to job.prepare; if a library clips, let the script's optimizer make the updates, "
            'lockstep.init(settings={"optimizer.name": "custom"})'
        )

    def _gradients_in_place(self) -> bool:
        """The gradients are in the session's memory, or gone, or elsewhere with the same values. A conversion of the model converts
        its gradients too, by their `data`, and the views that are kept here. They are made anew then."""
        assert self._gradient is not None
        views = self._gradient_views
        grads = [p.grad for p in self.list]
        if list(map(torch.Tensor.data_ptr, views)) == self._gradient_at and all(map(operator.is_, grads, views)):
            return True
        self._gradients.clear()
        return all(
            grad is None or (grad.dtype is torch.float32 and grad.device == view.device and _same_bits(grad, view))
            for grad, view in zip(grads, self._cut(self._gradient), strict=True)
        )

    def release_gradient(self) -> None:
        """A sum that is on its way to others is out of the script's reach."""
        for p in self.list:
            p.grad = None
        self._gradient, self._gradient_views = None, []

    def detach(self) -> None:
        """The parameters keep their values in memory of their own."""
        for p in self.list:
            p.grad = None
            p.data = p.data.clone()
        self._gradients.clear()
        self._gradient, self._gradient_views = None, []
        self._update_views.clear()
        self._views.clear()
        self._begun = self._looked_at = self._whole = None
        self._rest.forget()
        self._flat = self._update_gradient = torch.empty(0)
        self._at = self._update_at = 0

    def _cut(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        at = 0
        for count, shape in self._shapes:
            yield flat[at : at + count].view(shape)
            at += count


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Also of what is no number."""
    return torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32))


def _refuse_parameters(named: list[tuple[str, nn.Parameter]]) -> None:
    """Also two that share memory, which the job would part."""
    for name, p in named:
        _refuse_parameter(name, p)
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, p in named:
        if p.numel() > 0 and p.device.type != "meta":
            by_storage.setdefault(p.untyped_storage().data_ptr(), []).append((name, p.data))
    for there in by_storage.values():
        for at, (name, data) in enumerate(there):
            for other_name, other in there[:at]:
                if _overlap(data, other):
                    raise UsageError(
                        f"{other_name} and {name} share memory and are two parameters: make them one (decoder.weight = "
                        "encoder.weight), or compute the one from the other"
                    )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of one storage: they have a number in common."""
    begins, ends = [], []
    for t in (a, b):
        begins.append(t.storage_offset())
        ends.append(t.storage_offset() + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)))
    if max(begins) >= min(ends):
        return False
    taken = torch.zeros(max(ends), dtype=torch.bool)
    taken.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(taken.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _refuse_parameter(name: str, p: torch.Tensor) -> None:
    kind = type(p.data).__name__
    if kind == "DTensor" or hasattr(p, "placements"):
        raise UsageError(f"{name} is a DTensor: sharded and tensor-parallel models are not supported")
    if isinstance(p, nn.parameter.UninitializedParameter):
        raise UsageError(f"{name} has no shape yet: run the model once before job.prepare")
    if p.layout is not torch.strided:
        raise UsageError(f"{name} is sparse: not supported")
    if p.dtype is not torch.float32:
        raise UsageError(f"{name} is {str(p.dtype).removeprefix('torch.')}: parameters are float32; autocast may compute in others")


def digest_inputs(values: Iterable[object]) -> Iterator[bytes]:
    """Bytes of what a dataset yields, whatever its structure, for a digest."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype}{tuple(value.shape)}".encode()
            whole = value.detach().cpu().contiguous()
            yield ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""
        elif isinstance(value, Mapping):
            yield from digest_inputs(item for pair in value.items() for item in pair)
        elif isinstance(value, tuple | list):
            yield f"{len(value)}".encode()
            yield from digest_inputs(value)
        elif isinstance(value, int | float | str | bytes | bool | None):
            yield repr(value).encode()
        elif dataclasses.is_dataclass(value):
            yield from digest_inputs(getattr(value, field.name) for field in dataclasses.fields(value))
        elif callable(to_bytes := getattr(value, "tobytes", None)):  # an array of numpy, an image of PIL
            of = [str(getattr(value, name, None)) for name in ("dtype", "shape", "mode", "size")]
            yield f"{type(value).__name__}{of}".encode()
            items = getattr(value, "tolist", None)
            yield from digest_inputs([items()]) if items and of[0] == "object" else [to_bytes()]  # not addresses
        else:
            yield type(value).__name__.encode()
