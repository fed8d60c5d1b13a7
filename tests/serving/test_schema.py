"""Requests made of the server's own schema, right and wrong ones: none ends in an error of the server."""

from contextlib import suppress

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from socialx.serving.endpoints import make_app, make_service
from socialx.serving.latest import Served
from socialx.tasks.build import Experiment
from tests.serving.conftest import running_server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.mark.slow
def test_no_request_of_the_schema_ends_in_an_error_of_the_server(experiment: Experiment) -> None:
    served = Served(experiment, "small")
    served.forecast_from_data()
    service = make_service(served, 64)
    with running_server(make_app(service)) as url:
        for found in schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations():
            for mode in GenerationMode:
                ask(found.ok(), mode)
    (family,) = service.metrics.requests.collect()
    totals = [sample for sample in family.samples if sample.name.endswith("_total")]
    counted = {(sample.labels["path"], int(sample.labels["status"])): sample.value for sample in totals}
    assert counted["/forecast", 422] > 50
    assert {path for path, status in counted if status == 200} >= {"/", "/forecast/latest", "/sensors", "/metrics"}
    assert not [status for _, status in counted if status >= 500]


def ask(operation: APIOperation, mode: GenerationMode) -> None:
    """Requests of one operation that keep to its schema, or do not."""

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case) -> None:
        case.call_and_validate(checks=CHECKS)

    with suppress(Unsatisfiable):  # nothing can be wrong about a request without parameters
        send()
