"""Checks the arguments of `job.prepare`, and turns them into the job's parts and settings before the job is joined."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from lockstep import (
    _after,
    _batch_order,
    _costs,
    _ddp,
    _drawn,
    _final,
    _given,
    _loader,
    _model,
    _named,
    _rule,
    _session,
    _settings,
    _several,
    _units,
)
from lockstep._errors import UsageError

_COMPILING = "300s"  # what a compiled model's first runs may take: liveness.timeout, if nobody says otherwise


class Preparation:
    """The arguments are those of `job.prepare`. `own`: settings that come before those of the script. `workers`: that the job is to
    have; None: it is not known yet."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        loader: DataLoader[Any] | Callable[[], Any] | None,
        scheduler: LRScheduler | None,
        *,
        epochs: int | None,
        updates: int | None,
        global_batch: int | None,
        units: int | None,
        fixed_batch: bool,
        clip_grad_norm: float | None,
        samples: int | None,
        cost: _costs.Cost | None,
        max_cost: float | None,
        sharded: bool,
        scheduler_steps: str | None,
        seed: int,
        own: _settings.Settings,
        workers: int | None,
        after: _after.After,
    ) -> None:
        self.drawn = _drawn.is_function(loader)
        if self.drawn:
            _given.check_counts(updates=updates, global_batch=global_batch)
            global_batch = global_batch or self.a_batch_for_each(workers, "a function makes the batches")
            loader, epochs = _drawn.loader_of(loader, epochs, updates, global_batch), 1
        model, optimizer, ranks = _several.taken(model, optimizer, scheduler, workers)
        _given.check(model, optimizer, loader, scheduler, epochs)
        assert isinstance(loader, DataLoader) and isinstance(model, nn.Module) and isinstance(optimizer, Optimizer)
        assert epochs is not None
        self.loader = loader
        self.wrapped = ranks > 1 or _ddp.is_wrapper(model)
        model, of_wrapper = _ddp.take(model, workers)
        ranks = max(ranks, of_wrapper)
        self.model, self.optimizer = model, optimizer
        self.several = optimizer if isinstance(optimizer, _several.Together) else None
        _model.refuse_unsupported(model)
        self.epochs = epochs
        self.order = _batch_order.order_of(loader, samples)
        self.own_batches = self.drawn or isinstance(self.order, _batch_order.BatchOrder)
        _loader.warn_of_unused(loader, self.order)
        self.costs = _costs.Costs(cost, self.order, loader.dataset)
        self.parameters = _model.Parameters(model, optimizer)
        self.after = after
        after.check(model, self.parameters.list)
        ranks = max(ranks, self.order.replicas)
        self._ranks = 1 if global_batch is not None or self.own_batches else ranks
        if global_batch is None:
            global_batch = (
                self.a_batch_for_each(workers, "the DataLoader has a batch sampler")
                if self.own_batches
                else self.order.batch_size * ranks
            )
        self.batch = batch = global_batch
        self.base_batch = self.order.batch_size * ranks
        self.micro_batches = batch // self.base_batch if batch % self.base_batch == 0 and not self.own_batches else 1
        """Of each worker, in an update by a script for DDP."""
        _given.check_counts(epochs=epochs, updates=updates, global_batch=batch, units=units, samples=samples)
        samples = self.order.positions(batch)
        said: dict[str, object] = {
            "job.seed": seed,
            "job.global_batch": batch,
            "evaluation.every_epochs": 0,
        }
        in_epoch = math.ceil(samples / batch)
        # One of them ends the job.
        said |= {"job.epochs": epochs} if updates is None or updates >= in_epoch * epochs else {"job.rounds": updates}
        self.most_cost = self.costs.bound(max_cost)
        self.units = _units.Units(self.order.batch_size, units, fixed_batch, own_batches=self.own_batches, most_cost=self.most_cost)
        said |= self.units.settings(batch, norms=bool(self.parameters.averaged))
        if _model.is_compiled(model):
            said["liveness.timeout"] = _COMPILING
        if not self.own_batches and samples % batch != 0 and samples % batch < self.parameters.fewest_samples():
            raise UsageError(
                "the last batch of an epoch has one sample, and BatchNorm no statistics of it: take another batch size"
            )
        if scheduler_steps not in (None, "update", "epoch"):
            raise UsageError(f"scheduler_steps: {scheduler_steps!r} is neither 'update' nor 'epoch'")
        self.rule = _rule.Rule(
            self.parameters,
            optimizer,
            scheduler,
            updates=in_epoch,
            total=min(updates or in_epoch * epochs, in_epoch * epochs),
            in_epoch=None if scheduler_steps is None else scheduler_steps == "epoch",
            clip=clip_grad_norm,
            # What its config says of the job is known only when it is joined; what a script says of it comes first.
            own=own.get("optimizer.name"),
            why=_named.why_own_optimizer(),
            after=after,
        )
        said |= self.rule.settings
        self.settings = {key: _settings.text_of(value) for key, value in said.items()} | own
        self.batches = _loader.Batches(loader, sharded=sharded, samples=samples, whole=self.own_batches)

    def tell(self, units: str, batch: int, samples: int, workers: int) -> None:
        """As `Units.tell`, and what a script for DDP may have meant otherwise."""
        for line in _ddp.lines(self.wrapped, self._ranks, self.order, batch):
            print(f"lockstep: {line}", flush=True)
        self.units.tell(units, batch, samples, workers)

    @staticmethod
    def a_batch_for_each(workers: int | None, why: str) -> int:
        """A round's batches, as DDP has them."""
        if workers is None:
            raise UsageError(
                f"{why}, and the number of workers is not known before the job is joined: give global_batch=, the number of "
                "batches in a round"
            )
        return workers

    def explained(self, error: UsageError, workers: int | None) -> UsageError:
        """The coordinator's refusal, with the words that the script is to write."""
        if workers is not None and self.batch < workers and "job.global_batch" in str(error):
            what = "batches" if self.own_batches else "samples"
            return UsageError(f"{error}. Give job.prepare global_batch={workers} or more, the {what} of all workers in a round")
        return self.rule.explained(error)

    def check(self, config: _settings.Settings, workers: int) -> None:
        """Against the config of the job that was joined."""
        self._check_length(config)
        if self.drawn and int(config["job.global_batch"]) % workers == 0:
            self.micro_batches, self.base_batch = int(config["job.global_batch"]) // workers, workers
        if self.rule.schedule is not None:
            self.rule.schedule.check(config, self.batch)
        self.units.check(config)
        if not self.own_batches:
            self.rule.check_fewest(config, workers, self.units.at_once)
        self.rule.check(config)

    def _check_length(self, config: _settings.Settings) -> None:
        """The script's passes over the loader are as many as the job has, at least."""
        epochs, rounds = (int(config.get(key, 0)) for key in ("job.epochs", "job.rounds"))
        batch = int(config["job.global_batch"])
        updates = math.ceil(self.order.positions(batch) / batch) * self.epochs
        end = "the script would end before the job"
        if epochs > self.epochs:
            raise UsageError(f"the job has {epochs} epochs, as its config says, and job.prepare was told {self.epochs}: {end}")
        if rounds > updates:
            raise UsageError(
                f"the job has {rounds} rounds of {batch} samples, as its config says, and the {self.epochs} epochs that "
                f"job.prepare was told have {updates}: {end}"
            )

    def description(self, initial: int, digest: str, *, samples: int, to_evaluate: int, own_parameters: bool) -> _session.Job:
        """For the session. `samples`: of an epoch."""
        parameters, updates = self.parameters, self.rule.updates
        return _session.Job(
            tensors=parameters.tensors,
            initial=initial,
            dataset_digest=digest,
            train_samples=samples,
            test_samples=to_evaluate,
            finish_order=_final.order_of(len(parameters.list), len(parameters.tensors)),
            state_tensors=None if updates is None else updates.state_tensors,
            max_run_samples=self.units.at_once,
            max_run_units=self.units.max_in_run,
            own_parameters=own_parameters,
            averages=parameters.averages,
            epoch_ends=True,
            costs=self.costs.by_sample(samples),
            max_run_cost=self.most_cost.most,
        )
