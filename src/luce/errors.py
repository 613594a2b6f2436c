"""Every error luce raises on purpose, and what each one means to the outside.

LuceError
├── ApiError                     one request failed; has an HTTP status, a type and a code
│   ├── InvalidRequest           400 invalid_request_error
│   │   ├── UnsupportedFeature   400 unsupported_feature
│   │   ├── ContextLengthExceeded 400 context_length_exceeded
│   │   ├── ModelExceedsDevice   400 model_exceeds_device
│   │   ├── TemplateError        400 template_error
│   │   └── InvalidGrammar       400 invalid_schema
│   ├── Unauthorized             401 invalid_api_key
│   ├── Forbidden                403 forbidden (a web page of an origin that is not allowed)
│   ├── ModelNotFound            404 model_not_found
│   ├── ResponseNotFound         404 response_not_found
│   ├── RouteNotFound            404 not_found
│   ├── MethodNotAllowed         405 method_not_allowed
│   ├── BodyTooLarge             413 body_too_large
│   ├── UnsupportedMediaType     415 unsupported_media_type
│   ├── RequestTimeout           408 timeout (the client's upload was too slow)
│   ├── Overloaded               503, retryable
│   │   ├── QueueFull            503 overloaded
│   │   ├── ShuttingDown         503 shutting_down
│   │   ├── ModelLoading         503 model_loading
│   │   ├── ModelUnavailable     503 model_unavailable
│   │   ├── WorkerLost           503 worker_lost
│   │   ├── SwapDrainTimeout     503 swap_drain_timeout
│   │   ├── InsufficientDeviceMemory 503 insufficient_device_memory
│   │   └── DeviceOutOfMemory    503 out_of_memory
│   └── InternalError            500 internal_error
├── ClientGone                   nobody is left to answer; logged as 499
└── StartupError                 the process ends; has an exit code
    ├── UsageError               2
    ├── ModelFileError           3
    ├── PlacementError           4
    ├── BindError                5
    └── WorkerStartError         6

Statuses, codes and exit codes stand on the classes and nowhere else. A worker sends
`type(error).__name__` and the message over the wire; `from_wire` turns them back.
"""

from __future__ import annotations


class LuceError(Exception):
    """Base of all our errors; `str(error)` is a sentence fit for the person it reaches."""


class ApiError(LuceError):
    """One request failed. The other requests know nothing of it.

    Args:
        message: what was wrong and, where possible, what to do.
        param: JSON path of the offending field, e.g. `messages[0].content`.
        retry_after_s: seconds after which a retry makes sense; sent as Retry-After.
    """

    status: int = 500
    type: str = "server_error"
    code: str = "internal_error"
    retryable: bool = False

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(ApiError):
    """The request is wrong and will stay wrong."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request_error"


class UnsupportedFeature(InvalidRequest):
    """A field we know and do not serve."""

    code = "unsupported_feature"


class ContextLengthExceeded(InvalidRequest):
    """The prompt does not fit the model's context, or no model can ever hold it."""

    code = "context_length_exceeded"


class ModelExceedsDevice(InvalidRequest):
    """The model does not fit its device, not even alone."""

    code = "model_exceeds_device"


class TemplateError(InvalidRequest):
    """The model's chat template refused the messages."""

    code = "template_error"


class InvalidGrammar(InvalidRequest):
    """A schema, regex or grammar for the answer that cannot be followed, or not in bounds."""

    code = "invalid_schema"


class Unauthorized(ApiError):
    """The request carries no API key, or none that is known here."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class Forbidden(ApiError):
    """The caller may not do this, whatever it sends."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden"


class ModelNotFound(ApiError):
    """No served model has this name."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class ResponseNotFound(ApiError):
    """No response of this id is kept: it never was, or it had to make room."""

    status = 404
    type = "invalid_request_error"
    code = "response_not_found"


class RouteNotFound(ApiError):
    """No such path."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(ApiError):
    """The path exists, the method does not."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTooLarge(ApiError):
    """The request body is over the limit."""

    status = 413
    type = "invalid_request_error"
    code = "body_too_large"


class UnsupportedMediaType(ApiError):
    """The body is neither JSON nor unlabelled."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class RequestTimeout(ApiError):
    """The client took too long to send its request."""

    status = 408
    type = "invalid_request_error"
    code = "timeout"


class Overloaded(ApiError):
    """Not now; a retry may succeed."""

    status = 503
    type = "server_error"
    code = "overloaded"
    retryable = True

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = 1.0
    ) -> None:
        super().__init__(message, param=param, retry_after_s=retry_after_s)


class QueueFull(Overloaded):
    """All models are busy and the waiting queue is full."""


class ShuttingDown(Overloaded):
    """The server is stopping."""

    code = "shutting_down"


class ModelLoading(Overloaded):
    """The model is not ready yet."""

    code = "model_loading"


class ModelUnavailable(Overloaded):
    """The model failed and waits before it is tried again."""

    code = "model_unavailable"


class WorkerLost(Overloaded):
    """The model's process died while it held the request."""

    code = "worker_lost"


class SwapDrainTimeout(Overloaded):
    """The models that had to give way did not finish in time."""

    code = "swap_drain_timeout"


class InsufficientDeviceMemory(Overloaded):
    """A device's memory is held by what cannot be moved away."""

    code = "insufficient_device_memory"


class DeviceOutOfMemory(Overloaded):
    """The device ran out of memory for this request."""

    code = "out_of_memory"


class InternalError(ApiError):
    """Our bug. The log has the details under the request id; the client sees none."""

    @classmethod
    def logged(cls) -> InternalError:
        """What a client is told of an exception that nobody expected, once it is logged."""
        return cls("Internal error; the server's log has it under this request id.")


class ClientGone(LuceError):
    """The client closed its connection; nobody is left to answer."""


class StartupError(LuceError):
    """The process cannot start; it prints one line and exits with `exit_code`."""

    exit_code = 1


class UsageError(StartupError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class ModelFileError(StartupError):
    """A file of a model, template or card, is missing, damaged or not understood."""

    exit_code = 3


class PlacementError(StartupError):
    """The model does not fit where it should go."""

    exit_code = 4


class BindError(StartupError):
    """The address cannot be listened on."""

    exit_code = 5


class WorkerStartError(StartupError):
    """A model's process did not come up."""

    exit_code = 6


def _tree(root: type[LuceError]) -> dict[str, type[LuceError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def from_wire(name: str, message: str) -> LuceError:
    """Rebuild an error a worker named; an unknown name is our bug, hence `InternalError`."""
    return _tree(LuceError).get(name, InternalError)(message)
