"""What `intaglio plan` is asked for, made of its options or of a recipe. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.lineage.resolve import resolve_spec
from intaglio.planning.devices import Device, find_device
from intaglio.planning.job_plan import plan_job, require_room
from intaglio.planning.jobs import JobSpec
from intaglio.planning.recipes import is_recipe, job_of, read_recipe
from intaglio.planning.report import Report
from intaglio.planning.serving import ServingPlan, ServingSpec, plan_serving
from intaglio.specs import DecoderSpec, validate, validate_model
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["Request", "Served", "Trained", "serving", "training"]

WHERE = "plan"


@dataclass(frozen=True)
class Request:
    """Options as they were given; what was not is not in the mappings, or None.

    Attributes:
        model: a name, a directory or a recipe's file.
        job, adapter, rank: see `JobSpec` and `LoRASpec`.
        fields: more of the job's.
        chunk: the job's, 0 for None.
        layout, pipeline: of `ParallelSpec` and `PipelineSpec`.
        gpus: devices of all.
        device, device_file, price: see `find_device`.
        concurrency: of serving.
    """

    model: str
    job: str | None
    adapter: str | None
    rank: int | None
    fields: Mapping[str, Any]
    chunk: int | None
    layout: Mapping[str, Any]
    pipeline: Mapping[str, Any]
    gpus: int | None
    device: str
    device_file: Path | None
    price: float | None
    concurrency: int | None

    def found_device(self) -> Device:
        """See `find_device`."""
        return find_device(self.device, self.device_file, self.price)


@dataclass(frozen=True)
class Trained:
    """A training job's report, and the model's name."""

    title: str
    report: Report

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        spec = self.report.plan.spec
        return {"model": self.title, "num_parameters": spec.num_parameters(), **self.report.plain()}


@dataclass(frozen=True)
class Served:
    """A serving plan, and of what on what."""

    title: str
    spec: DecoderSpec
    serving: ServingSpec
    device: Device
    tp: int
    plan: ServingPlan

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "model": self.title,
            "num_parameters": self.spec.num_parameters(),
            **self.plan.plain(),
            "serving": self.serving.plain(),
            "world": self.tp,
            "device": {"name": self.device.name, "title": self.device.title, "memory_bytes": self.device.memory},
            "dollars_an_hour": self.device.price * self.tp,
        }


def training(request: Request) -> Trained:
    """The plan of a training job.

    Raises:
        UserError: anything that does not fit: see `plan_job`, `read_recipe`, `resolve_spec` and `find_device`.
    """
    device = request.found_device()
    if is_recipe(request.model):
        title, spec, job, layout = _of_recipe(Path(request.model))
    else:
        title, spec = _model(request.model)
        job, layout = JobSpec(), ParallelSpec()
    job = _job(request, spec, job)
    layout = _layout(request, layout)
    require_room(spec, job)
    return Trained(title, Report(plan_job(spec, job, layout, cpu=device.cpu), device))


def serving(request: Request) -> Served:
    """The plan of serving.

    Raises:
        UserError: an option of training, or see `plan_serving`, `resolve_spec` and `find_device`.
    """
    device = request.found_device()
    title, spec = _model(request.model)
    others = {**request.fields, **request.layout, **request.pipeline}
    unfit = next((name for name in others if name not in ("dtype", "sequence", "tp")), None)
    if unfit is not None:
        raise UserError("means nothing to serving", where=f"--{unfit.replace('_', '-')}", mend="leave it out")
    if request.adapter == "lora":
        raise UserError("an adapter is merged when it is served", where="--adapter", mend="none, or qlora for 4 bits")
    fields = {
        "dtype": request.fields.get("dtype", "bfloat16"),
        "context": request.fields.get("sequence", min(4096, spec.context_limit)),
        "concurrency": request.concurrency,
        "weights": "nf4" if request.adapter == "qlora" else "plain",
    }
    wanted: ServingSpec = validate(ServingSpec, fields, WHERE)
    tp = request.layout.get("tp", request.gpus or 1)
    if request.gpus is not None and request.gpus != tp:
        raise UserError(
            f"{request.gpus} devices, {tp} to a model", where="--gpus", mend="plan one model: --gpus = --tp"
        )
    return Served(title, spec, wanted, device, tp, plan_serving(spec, wanted, device, tp))


def _model(name: str) -> tuple[str, DecoderSpec]:
    title, spec, _ = resolve_spec(name)
    return title, _decoder(spec, name)


def _decoder(spec: Any, name: str) -> DecoderSpec:
    if not isinstance(spec, DecoderSpec):
        raise UserError(f"a {spec.kind} is planned nowhere yet", where=name, mend="name a decoder-only model")
    return spec


def _of_recipe(path: Path) -> tuple[str, DecoderSpec, JobSpec, ParallelSpec]:
    recipe = read_recipe(path)
    if isinstance(recipe.model, str):
        title, spec = _model(recipe.model)
    elif "vocab_size" not in recipe.model:
        raise UserError(
            "the vocabulary is not made yet, so that nobody knows its size",
            where=f"{path}: architecture",
            mend="write vocab_size into the architecture, or see `intaglio train --dry-run`",
        )
    else:
        title, spec = path.name, _decoder(validate_model(recipe.model, f"{path}: architecture"), str(path))
    return title, spec, job_of(recipe, str(path)), recipe.parallel


def _job(request: Request, spec: DecoderSpec, job: JobSpec) -> JobSpec:
    """The job with what the options say."""
    fields = {name: getattr(job, name) for name in job.model_fields_set} | dict(request.fields)
    if not job.model_fields_set:
        fields = {"sequence": min(2048, spec.context_limit), **fields}
    if request.job is not None:
        fields["job"] = request.job
    if request.chunk is not None:
        fields["chunk"] = request.chunk or None
    if request.adapter is not None:
        fields["adapter"] = None if request.adapter == "none" else fields.get("adapter") or LoRASpec()
        fields["quantization"] = QuantizationSpec() if request.adapter == "qlora" else None
    if request.rank is not None:
        if fields.get("adapter") is None:
            raise UserError("of an adapter", where="--rank", mend="say --adapter lora or qlora")
        fields["adapter"] = fields["adapter"].updated(r=request.rank)
    wanted: JobSpec = validate(JobSpec, fields, WHERE)
    return wanted


def _layout(request: Request, layout: ParallelSpec) -> ParallelSpec:
    """The layout with what the options say; of `gpus` data parallelism takes what is left."""
    if not request.layout and not request.pipeline and request.gpus is None:
        return layout
    fields = {name: getattr(layout, name) for name in layout.model_fields_set} | dict(request.layout)
    if request.pipeline:
        known = {name: getattr(layout.pp, name) for name in layout.pp.model_fields_set}
        fields["pp"] = {**known, **request.pipeline}
    pipeline = fields.get("pp", {})
    stages = pipeline.get("ranks", 1) if isinstance(pipeline, Mapping) else pipeline.ranks
    others = {"tp": fields.get("tp", 1), "pp": stages, "cp": fields.get("cp", 1)}
    apart = others["tp"] * others["pp"] * others["cp"]
    if request.gpus is not None:
        dp, rest = divmod(request.gpus, apart)
        if rest or not dp:
            made = " x ".join(f"{name} {size}" for name, size in others.items() if size > 1)
            raise UserError(
                f"{request.gpus} devices are no multiple of {made}", where="--gpus", mend="take another number"
            )
        fields["dp"] = dp
    if "zero" not in fields:
        shared = fields.get("dp", 1) * others["cp"] > 1
        fields["zero"] = (1 if stages > 1 else 3) if shared else 0
    wanted: ParallelSpec = validate(ParallelSpec, fields, WHERE)
    return wanted
