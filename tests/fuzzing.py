"""Requests made from the API's own OpenAPI document, fitting and not: none may be a fault of the server's."""

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

__all__ = ["fuzz"]


def fuzz(url: str, requests: int, seconds: float = 60) -> int:
    """Sends about so many to the server whose document is at `url`; how many it were.

    Args:
        url: of the document.
        requests: shared out evenly among operations that take a body; others get one each.
        seconds: for one answer, so that a hang is seen.
    """
    schema = schemathesis.openapi.from_url(url)
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    writing = [operation for operation in operations if operation.method == "post"]
    each = -(-requests // (2 * len(writing)))
    sent = 0

    def send(case: Case[Any]) -> None:
        nonlocal sent
        sent += 1
        answer = case.call(timeout=seconds)
        assert answer.status_code < 500, f"{answer.status_code} for {case.as_curl_command()}"
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error"}, f"no error object for {case.as_curl_command()}"

    for operation in operations:
        count = each if operation in writing else 1
        trial = settings(
            max_examples=count,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE) if operation in writing else (None,):
            cases = operation.as_strategy(generation_mode=mode) if mode else operation.as_strategy()
            trial(given(cases)(send))()
    return sent
