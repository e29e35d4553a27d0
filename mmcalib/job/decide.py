"""Third step: from costs to a configuration, asking vLLM for the budget of each candidate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.census.shapes import Modality
from mmcalib.corpus.item import Skipped
from mmcalib.derive import frontier, limits
from mmcalib.derive.adequacy import Adequacy, adequacy
from mmcalib.derive.costs import CostTable
from mmcalib.derive.frontier import Point
from mmcalib.derive.limits import Count, Hint
from mmcalib.derive.policy import Policy
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import AskBudget, Budget, Knob, ModelOpened
from mmcalib.engine.setting import Setting
from mmcalib.errors import EngineDied, EngineError
from mmcalib.job.measure import Sample, measure, remeasure
from mmcalib.progress import Progress


@dataclass(frozen=True, slots=True)
class Explored:
    """One point of the frontier with vLLM's budget for it."""

    point: Point
    budget: Budget
    chosen: bool
    engine_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """The derived configuration and everything it was derived from."""

    default_table: CostTable
    table: CostTable
    setting: Setting
    explored: tuple[Explored, ...]
    ineffective: tuple[Knob, ...]
    counts: dict[Modality, Count]
    hints: dict[Modality, Hint]
    refused_hints: dict[Modality, str]
    default_budget: Budget
    default_error: str
    budget: Budget
    adequacy: Adequacy
    engine_args: dict[str, Any]
    unreadable: tuple[Skipped, ...]


class Decider:
    """Holds what every question to vLLM needs; `decide` is the whole step."""

    def __init__(
        self,
        host: EngineHost,
        opened: ModelOpened,
        model_path: str,
        policy: Policy,
        progress: Progress,
    ) -> None:
        self._host, self._opened, self._policy = host, opened, policy
        self._path, self._progress = model_path, progress

    def decide(self, census: Census, prompts: PromptCensus, sample: Sample) -> Decision:
        """Measure under the default, explore each knob, choose, and settle limits and budget."""
        base = Setting(media_io_kwargs=self._policy.media_io_kwargs)
        default, unreadable = measure(self._host, census, base, sample, self._progress)
        counts = self._counts(default, prompts)
        plain = limits.limit_mm_per_prompt(counts, {})
        default_budget, default_error = self._default_budget()
        explored = [e for knob in self._knobs(default) for e in self._explore(knob, default, plain)]
        ineffective = tuple(knob for knob in self._knobs(default) if not _moves(knob, explored))
        chosen = [e.point for e in explored if e.chosen and e.point.knob not in ineffective]
        setting = frontier.merged([base, *(point.setting for point in chosen)])
        table = default
        if setting != base:
            table, more = measure(self._host, census, setting, sample, self._progress)
            unreadable += [s for s in more if s not in unreadable]
        engine_args = self._engine_args(setting, plain, table)
        budget = self._budget(engine_args, build_dummy=True)
        hints, refused = self._hints(engine_args, counts, table)
        if hints:
            engine_args["limit_mm_per_prompt"] = limits.limit_mm_per_prompt(counts, hints)
            engine_args["max_num_batched_tokens"] = self._batched(engine_args, table)
            budget = self._budget(engine_args, build_dummy=True)
        return Decision(
            default_table=default,
            table=table,
            setting=setting,
            explored=tuple(explored),
            ineffective=ineffective,
            counts=counts,
            hints=hints,
            refused_hints=refused,
            default_budget=default_budget,
            default_error=default_error,
            budget=budget,
            adequacy=adequacy(budget, {m: c.value for m, c in counts.items()}),
            engine_args=engine_args,
            unreadable=tuple(unreadable),
        )

    def _counts(self, table: CostTable, prompts: PromptCensus) -> dict[Modality, Count]:
        counts: dict[Modality, Count] = {}
        for modality, most in self._opened.modalities.items():
            count = self._count(modality, table, prompts)
            if most is not None and count.value > most:
                reason = f"{count.reason}; the model takes at most {most}"
                count = Count(most, reason, "computed", count.exemplar)
            counts[modality] = count
        return counts

    def _count(self, modality: Modality, table: CostTable, prompts: PromptCensus) -> Count:
        given = self._policy.count.get(modality)
        if given is not None:
            return Count(given, f"given: --count {modality}={given}", "given")
        present = table.of(modality)
        if not present:
            why = f"no {modality} in the corpus"
            if any(r.shape.modality == modality for r in table.refusals):
                why = f"vLLM refuses every {modality} of the corpus"
            elif modality in table.failed:
                why = f"vLLM can load no {modality} of the corpus"
            return Count(0, why, "computed")
        if not prompts.prompts():
            reason = "no request structure given; --requests or --count says how many"
            return Count(1, f"one per prompt: {reason}", "assumed", present[0].exemplar)
        coverage = self._policy.coverage
        value = prompts.covering(tuple(self._opened.modalities), coverage)[modality]
        if value == 0:
            reason = f"no covered request carries a {modality}, but the corpus holds some"
            return Count(1, f"one per prompt: {reason}", "assumed", present[0].exemplar)
        total = prompts.prompts()
        share = f"the most in any of {total} requests"
        if coverage < 1:
            share = f"covers {coverage:.1%} of {total} requests"
        origin = min(
            entry.exemplar.origin
            for entry in prompts.signatures()
            if entry.signature.items(modality) >= value
        )
        return Count(value, share, "computed", origin)

    def _knobs(self, table: CostTable) -> list[Knob]:
        """Those that concern the corpus, and that the user has not turned."""
        given = self._policy.media_io_kwargs
        return [
            knob
            for knob in self._opened.knobs
            if table.of(knob.modality)
            and not (knob.argument == "media_io_kwargs" and knob.path[0] in given)
        ]

    def _explore(self, knob: Knob, default: CostTable, plain: Mapping[str, Any]) -> list[Explored]:
        """Every candidate of one knob, costed and budgeted, with the policy's choice marked."""
        values = frontier.candidates(knob, default, self._policy)
        tables, points = [], []
        with self._progress.step(f"trying {knob.name}", len(values)) as task:
            for value in values:
                table = self._under(knob, value, default)
                tables.append(table)
                points.append(frontier.point(knob, value, table, default))
                task.advance()
        chosen = frontier.choose(points, self._policy)
        explored = []
        for point, table in zip(points, tables, strict=True):
            args = self._engine_args(point.setting, plain, table)
            explored.append(Explored(point, self._budget(args), point is chosen, args))
        return explored

    def _under(self, knob: Knob, value: int | float, default: CostTable) -> CostTable:
        """The costs at one value. Shapes that fit under a cap are not measured again, except one
        that would tell if they had to be.
        """
        setting = frontier.at(knob, value, default.setting)
        if setting == default.setting:
            return default
        changed = frontier.exceeding(knob, value, default)
        witness = frontier.witness(knob, default, changed)
        if witness is None:
            return remeasure(self._host, default, setting, changed)
        table = remeasure(self._host, default, setting, [*changed, witness])
        now = table.costs.get(witness)
        if now is not None and now.tokens == default.costs[witness].tokens:
            return table
        every = [cost.shape for cost in default.of(knob.modality)]
        return remeasure(self._host, default, setting, every)

    def _engine_args(
        self, setting: Setting, per_prompt: Mapping[str, Any], table: CostTable
    ) -> dict[str, Any]:
        """Engine arguments as vLLM names them, without the model; in the order of the file."""
        args: dict[str, Any] = {"limit_mm_per_prompt": dict(per_prompt)}
        if setting.mm_processor_kwargs:
            args["mm_processor_kwargs"] = dict(setting.mm_processor_kwargs)
        if setting.media_io_kwargs:
            args["media_io_kwargs"] = dict(setting.media_io_kwargs)
        args["max_model_len"] = self._opened.max_model_len
        args["max_num_batched_tokens"] = self._batched(args, table)
        if self._policy.max_num_seqs is not None:
            args["max_num_seqs"] = self._policy.max_num_seqs
        return args

    def _batched(self, args: Mapping[str, Any], table: CostTable) -> int:
        if self._policy.max_num_batched_tokens is not None:
            return self._policy.max_num_batched_tokens
        wanted = self._opened.serve_defaults["max_num_batched_tokens"]
        plain = {key: value for key, value in args.items() if key != "max_num_batched_tokens"}
        largest = max(self._roomy(plain).max_tokens_per_item.values(), default=0)
        real = max((cost.embeds for cost in table.costs.values()), default=0)
        return limits.max_num_batched_tokens(
            wanted, largest, real, chunks_mm_input=self._opened.chunks_mm_input
        )

    def _default_budget(self) -> tuple[Budget, str]:
        """Of vLLM's defaults, and its words where it refuses to start with them."""
        try:
            return self._budget({}), ""
        except EngineDied:
            raise
        except EngineError as error:
            return self._roomy({}), error.message

    def _roomy(self, args: Mapping[str, Any]) -> Budget:
        """With a step of the whole context: for the largest item, which does not depend on it. A
        model that cannot chunk multimodal input refuses a step that does not hold one.
        """
        if self._opened.chunks_mm_input:
            return self._budget(args)
        return self._budget({**args, "max_num_batched_tokens": self._opened.max_model_len})

    def _budget(self, args: Mapping[str, Any], *, build_dummy: bool = False) -> Budget:
        request = AskBudget({"model": self._path, **args}, build_dummy)
        for name, value in self._server_defaults():
            request.engine_args.setdefault(name, value)
        return self._host.ask(request, Budget, "computing the encoder budget")

    def _server_defaults(self) -> Iterator[tuple[str, int]]:
        """What the server would choose where nothing is said: it need not be this machine."""
        yield "max_model_len", self._opened.max_model_len
        yield from self._opened.serve_defaults.items()

    def _hints(
        self, args: Mapping[str, Any], counts: Mapping[Modality, Count], table: CostTable
    ) -> tuple[dict[Modality, Hint], dict[Modality, str]]:
        """Per modality the first hint whose dummy costs what may come, or why there is none."""
        hints: dict[Modality, Hint] = {}
        refused: dict[Modality, str] = {}
        for modality in table.modalities():
            heaviest = table.heaviest(modality)
            if heaviest is None or counts[modality].value == 0:
                continue
            why = "it has no size that a hint could name"
            for hint in limits.hint_candidates(heaviest, self._opened.audio_rate_hz):
                tried = limits.limit_mm_per_prompt(counts, {**hints, modality: hint})
                budget = self._budget({**args, "limit_mm_per_prompt": tried}, build_dummy=True)
                if limits.hint_is_honest(modality, budget, heaviest):
                    hints[modality] = hint
                    break
                dummy = budget.dummies.get(modality)
                most = max(heaviest.embeds, budget.max_tokens_per_item.get(modality, 0))
                why = "vLLM profiles no item of its own for it"
                if dummy is not None:
                    why = f"vLLM would profile {dummy.embeds} tokens where one item may take {most}"
            if modality not in hints:
                refused[modality] = why
        return hints, refused


def _moves(knob: Knob, explored: list[Explored]) -> bool:
    """Whether any value of the knob moved tokens or budget away from the default value's."""
    mine = [e for e in explored if e.point.knob == knob]
    seen = {(e.point.max_tokens, tuple(sorted(e.budget.max_tokens_per_item.items()))) for e in mine}
    return len(mine) < 2 or len(seen) > 1
