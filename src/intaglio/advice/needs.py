"""What a task needs, as the user says it: on the terminal, by flags or in a YAML file. No torch."""

from typing import Literal

from pydantic import Field

from intaglio.specs import Spec

__all__ = ["Level", "Needs"]

Level = Literal["none", "some", "much"]


class Needs(Spec):
    """The answers to the questions of `intaglio advise`. The description of a field is its question.

    Attributes:
        model: a preset, a directory or a pulled model.
        knowledge: facts that are not in the model; `changing` ones would have to be trained again and again.
        style: how far answers must have a form of their own.
        skill: how far the task asks for a kind of reasoning that the model lacks.
        examples: solved ones there are.
        documents: tokens of the documents that hold the facts; 0 where there are none.
        question_tokens, answer_tokens: of one request.
        requests: that are to be answered in all.
        latency: seconds that an answer may take; None for any.
        budget: hours that training may take; None for any.
        memory: GiB; None for this machine's.
        tflops: that the machine computes in a second, in 10^12; None measures this one.
        bandwidth: GB that it reads of its memory in a second; None measures this one.
    """

    model: str = Field("smollm2-135m", description="which model")
    knowledge: Literal["none", "private", "changing"] = Field(
        "none", description="does the task need facts that the model cannot know, and do they change"
    )
    style: Level = Field("none", description="must answers have a style or a format of their own")
    skill: Level = Field("none", description="does it take reasoning that the model does not master")
    examples: int = Field(0, ge=0, description="how many solved examples are there")
    documents: int = Field(0, ge=0, description="how many tokens have the documents that hold the facts")
    question_tokens: int = Field(100, gt=0, description="how many tokens has a question")
    answer_tokens: int = Field(100, gt=0, description="how many tokens has an answer")
    requests: int = Field(10_000, gt=0, description="how many requests are to be answered in all")
    latency: float | None = Field(None, gt=0, description="how many seconds may an answer take")
    budget: float | None = Field(None, gt=0, description="how many hours may training take")
    memory: float | None = Field(None, gt=0, description="how many GiB of memory are there")
    tflops: float | None = Field(None, gt=0, description="how many TFLOP/s does the machine compute")
    bandwidth: float | None = Field(None, gt=0, description="how many GB/s does it read of its memory")
