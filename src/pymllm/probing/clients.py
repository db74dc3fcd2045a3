"""Clients of servers under probe: OpenAI's completions API, llama.cpp's own and sglang's own.

Traffic goes to the named address alone: no redirect is followed, and no proxy of the environment is used.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import httpx

from pymllm.errors import PymllmError, UsageError
from pymllm.probing.records import Answer, Figures, Place, Token, Way
from pymllm.text_file import cut

TOP = 8
"""The number of log-probabilities requested for each token."""

AUTHORIZATION = "PYMLLM_AUTHORIZATION"
"""The environment variable with the HTTP header of that name, such as ``Bearer KEY``, never printed."""

_BODY_MOST = 32 << 20
_RESET_SECONDS = 10.0
_AT_ONCE = 0.003  # seconds after which a client leaves that wants not even the first byte
_IMPOSSIBLE = -9999.0  # vLLM's word for a token without any probability; llama.cpp says the least float


class ServerFailed(PymllmError):
    """Raised when a server fails to answer correctly; the probe ends with what was judged before.

    ``status`` is that of its answer, where it is the reason.
    """

    status: int | None = None


class NotServed(UsageError):
    """Raised for an address without a listener or a known API, or one not to be probed."""


class Client(ABC):
    """A client of one server; several threads may send requests at once.

    Parameters
    ----------
    http : httpx.Client
        Bound to the address.
    model : str or None
        Its name, where the server has to be told.
    """

    api: ClassVar[Literal["openai", "llama.cpp", "sglang"]]
    path: ClassVar[str]
    salt_field: ClassVar[str] = ""
    """The name of the request field for a namespace; "" if there is none."""

    def __init__(self, http: httpx.Client, server: str, model: str | None = None) -> None:
        self._http = http
        self.server = server
        self.model = model
        self.has_salts = False
        self.no_salts = "the server is not known to have namespaces"
        self.has_ids = True
        self.reset_path: str | None = None

    @property
    def url(self) -> str:
        """The address of the server, without a final slash."""
        return str(self._http.base_url).rstrip("/")

    @property
    def is_known(self) -> bool:
        """Whether the fields that the server supports are known without a test request."""
        return not self.salt_field

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways to make a request cold on this server, the best first."""
        salt: tuple[Way, ...] = ("salt",) if self.has_salts else ()
        return (*salt, "reset") if self.reset_path else salt

    @abstractmethod
    def body(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None, *, is_cold: bool, stream: bool = False
    ) -> dict[str, Any]:
        """Return the body of a request; ``is_cold`` matters only if a field can switch the cache off."""

    @abstractmethod
    def read(self, prompt: Sequence[int], plain: Any) -> Answer:
        """Return the answer in a server's JSON, or raise `LookupError`, `TypeError` or `ValueError`."""

    def ask(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None = None, *, is_cold: bool = False
    ) -> Answer:
        """Send a request, and wait for the whole answer."""
        body = self.body(prompt, max_tokens, salt, is_cold=is_cold)
        plain = request_json(self._http, "POST", self.path, body)
        try:
            return self.read(prompt, plain)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            told = cut(json.dumps(plain))
            why = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise ServerFailed(
                f"POST {self.path} answered {told}, which is no answer of {self.api}: {why}"
            ) from error

    def drop(self, prompt: Sequence[int], max_tokens: int, salt: str | None, after: int) -> None:
        """Start a streamed request, and close the connection after so many bytes (0: before the first)."""
        body = self.body(prompt, max_tokens, salt, is_cold=False, stream=True)
        timeout = self._http.timeout
        if after == 0:
            timeout = httpx.Timeout(**{**timeout.as_dict(), "read": _AT_ONCE})
        with _failures(f"POST {self.path}"):
            try:
                with self._http.stream("POST", self.path, json=body, timeout=timeout) as response:
                    if response.status_code != 200:
                        response.read()
                        _demand_ok(response, f"POST {self.path}")
                    seen = 0
                    for piece in response.iter_raw():
                        seen += len(piece)
                        if seen >= after:
                            break
            except httpx.ReadTimeout:
                if after:
                    raise

    def reset(self) -> None:
        """Empty the cache, once the server permits it."""
        assert self.reset_path is not None
        until = time.monotonic() + _RESET_SECONDS
        while True:
            response, text = fetch(self._http, "POST", self.reset_path)
            if response.status_code == 200:
                return
            if response.status_code not in (400, 409, 503) or time.monotonic() > until:
                told = cut(text.decode(errors="replace").strip())
                raise ServerFailed(f"POST {self.reset_path} answered {response.status_code}: {told!r}")
            time.sleep(0.05)

    def figures(self) -> Figures:
        """Return the figures in the server's metrics; all are ``None`` if it has no metrics."""
        response, text = fetch(self._http, "GET", "/metrics")
        return read_figures(text.decode(errors="replace")) if response.status_code == 200 else Figures()


class OpenAI(Client):
    """The client for ``POST /v1/completions``, with token ids for vLLM and ``pymllm serve`` or with texts."""

    api = "openai"
    path = "/v1/completions"
    salt_field = "cache_salt"

    def __init__(self, http: httpx.Client, server: str, model: str | None = None) -> None:
        super().__init__(http, server, model)
        self.has_salts = self.returns_ids = self.is_known

    @property
    def is_known(self) -> bool:
        """Whether the server is vLLM or ours, which support all fields."""
        return self.server in ("vllm", "pymllm")

    def body(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None, *, is_cold: bool, stream: bool = False
    ) -> dict[str, Any]:
        """Return the body of a request, with vLLM's extra fields if the server supports them."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": [*prompt] if self.has_ids else "".join(map(chr, prompt)),
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": TOP,
        }
        if self.returns_ids:
            body["return_token_ids"] = True
        if self.has_salts:
            body[self.salt_field] = salt
        if self.server == "vllm":
            body["return_tokens_as_token_ids"] = True  # two tokens may have the same text
        return body | ({"stream": True} if stream else {})

    def read(self, prompt: Sequence[int], plain: Any) -> Answer:
        """Return the answer in a completion, with token ids if the server reports them, else with texts."""
        [choice] = plain["choices"]
        told = choice.get("logprobs") or {}
        texts = told.get("tokens") or []
        tops = told.get("top_logprobs") or []
        ids = choice.get("token_ids") if self.has_ids else None
        tokens: list[Token] = _ids(ids) if ids is not None else _texts(texts)
        if not tokens and choice["text"]:
            raise ValueError("it has a text, and neither token ids nor logprobs")
        # Names of alternatives are texts, also where the tokens are ids: both answers name them alike.
        places = tuple(
            Place(token, _sorted((tops[at] or {}).items()) if at < len(tops) else ())
            for at, token in enumerate(tokens)
        )
        usage = plain.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            prompt=tuple(prompt),
            places=places,
            cached=_count(details.get("cached_tokens")),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            generated=_count(usage.get("completion_tokens")),
            is_stopped=choice.get("finish_reason") == "stop",
        )


class LlamaCpp(Client):
    """The client for ``POST /completion`` of llama.cpp's server."""

    api = "llama.cpp"
    path = "/completion"

    @property
    def ways(self) -> tuple[Way, ...]:
        """The only way to make a request cold: its field ``cache_prompt``."""
        return ("flag",)

    def body(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None, *, is_cold: bool, stream: bool = False
    ) -> dict[str, Any]:
        """Return the body of a request, which has no namespace."""
        return {
            "prompt": [*prompt],
            "n_predict": max_tokens,
            "temperature": 0,
            "n_probs": TOP,
            "cache_prompt": not is_cold,
            "return_tokens": True,
            "stream": stream,
        }

    def read(self, prompt: Sequence[int], plain: Any) -> Answer:
        """Return the answer in a completion.

        ``completion_probabilities`` has no entry for a token that ends inside a character, so that entries
        are matched with tokens by their ids, and what does not match has no log-probabilities.
        """
        tokens = _ids(plain["tokens"])
        told = [
            (int(entry["id"]), _sorted((int(it["id"]), float(it["logprob"])) for it in entry["top_logprobs"]))
            for entry in plain.get("completion_probabilities") or ()
        ]
        places = []
        for at, token in enumerate(tokens):
            # As many entries are missing as tokens are left over: the next entry belongs here if ids agree.
            top: tuple[tuple[Token, float], ...] = ()
            if (
                told
                and told[0][0] == token
                and (len(told) == len(tokens) - at or _is_sure(told, tokens[at:]))
            ):
                top = told.pop(0)[1]
            places.append(Place(token, top))
        timings = plain.get("timings") or {}
        return Answer(
            prompt=tuple(prompt),
            places=tuple(places),
            # Not tokens_cached: that is how many the slot has now, with those of the answer.
            cached=_count(timings.get("cache_n")),
            prompt_tokens=_count(plain.get("tokens_evaluated")),
            generated=_count(plain.get("tokens_predicted")),
            is_stopped=plain.get("stop_type") == "eos",
        )


class Sglang(Client):
    """The client for ``POST /generate`` of sglang."""

    api = "sglang"
    path = "/generate"
    salt_field = "extra_key"

    def __init__(self, http: httpx.Client, server: str, model: str | None = None) -> None:
        super().__init__(http, server, model)
        self.reset_path = "/flush_cache"

    def body(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None, *, is_cold: bool, stream: bool = False
    ) -> dict[str, Any]:
        """Return the body of a request, with a namespace if the server separates them."""
        salted = {self.salt_field: salt} if self.has_salts else {}
        return salted | {
            "input_ids": [*prompt],
            "sampling_params": {"max_new_tokens": max_tokens, "temperature": 0},
            "return_logprob": True,
            "top_logprobs_num": TOP,
            "logprob_start_len": -1,
            "stream": stream,
        }

    def read(self, prompt: Sequence[int], plain: Any) -> Answer:
        """Return the answer in sglang's JSON, where log-probabilities are (value, id, text)."""
        meta = plain["meta_info"]
        chosen = [int(entry[1]) for entry in meta["output_token_logprobs"]]
        tops = meta.get("output_top_logprobs") or []
        places = tuple(
            Place(
                token,
                _sorted((int(entry[1]), float(entry[0])) for entry in (tops[at] or ()))
                if at < len(tops)
                else (),
            )
            for at, token in enumerate(chosen)
        )
        reason = meta.get("finish_reason") or {}
        return Answer(
            prompt=tuple(prompt),
            places=places,
            cached=_count(meta.get("cached_tokens")),
            prompt_tokens=_count(meta.get("prompt_tokens")),
            generated=_count(meta.get("completion_tokens")),
            is_stopped=isinstance(reason, dict) and reason.get("type") == "stop",
        )


CLIENTS: dict[str, type[Client]] = {client.api: client for client in (OpenAI, LlamaCpp, Sglang)}
"""The client classes, by the names that ``--api`` takes."""


# -- which server is it ------------------------------------------------------------------------------------


def make_http(url: str, timeout: float) -> httpx.Client:
    """Return an HTTP client for one address, without redirects or proxy settings; 0 s means no time limit.

    No connection is used twice: a server closes idle ones, vLLM's after 5 s, and a request that is on its way
    just then has no answer, as if the server had died.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that there is not, which httpx takes for another one
        is_address = False
    if not is_address:
        raise NotServed(f"{cut(url)!r} is no address of a server; write http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise NotServed(
            f"a password in the URL would stand in every result; leave it out, and set {AUTHORIZATION}"
        )
    address = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1")
    key = os.environ.get(AUTHORIZATION)
    return httpx.Client(
        base_url=address,
        headers={} if key is None else {"Authorization": key},
        timeout=timeout or None,
        limits=httpx.Limits(max_keepalive_connections=0),
        trust_env=False,
        follow_redirects=False,
    )


def connect(http: httpx.Client, api: str, *, keeps_cache: bool = False) -> Client:
    """Find the API of a server, unless it is given, and return a client.

    Whether a cache can be emptied is found by emptying it, unless the client is to keep it. `NotServed` where
    nothing can be probed.
    """
    try:
        owner, model = _owner_of(http)
        if api == "auto":
            api = _api_of(http, owner, model)
        client = CLIENTS[api](http, owner or api, model)
        if api == "openai":
            if model is None:
                raise ServerFailed("GET /v1/models lists no model")
            if not keeps_cache and _has(http, "POST", "/reset_prefix_cache"):
                client.reset_path = "/reset_prefix_cache"
    except ServerFailed as error:
        raise NotServed(str(error)) from error
    return client


def _owner_of(http: httpx.Client) -> tuple[str | None, str | None]:
    """Return the owner and the name of the first model that the server lists."""
    response, text = fetch(http, "GET", "/v1/models")
    if response.status_code == 404:
        return None, None
    _demand_ok(response, "GET /v1/models", text)
    try:
        plain = json.loads(text)
        first = (plain.get("data") or [{}])[0]
        return first.get("owned_by"), first.get("id")
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
        told = cut(" ".join(text.decode(errors="replace").split()))
        raise ServerFailed(f"GET /v1/models answered {told!r}, which is no list of models") from error


def _api_of(http: httpx.Client, owner: str | None, model: str | None) -> str:
    if owner == "llamacpp":
        return "llama.cpp"
    if owner == "sglang":
        return "sglang"
    if owner is not None:
        return "openai"
    for path, api in (("/props", "llama.cpp"), ("/get_model_info", "sglang")):
        if _has(http, "GET", path):
            return api
    if model is not None:
        return "openai"
    raise ServerFailed(
        "neither /v1/models names a model, nor is /props or /get_model_info there; name the --api if any is"
    )


def _has(http: httpx.Client, method: str, path: str) -> bool:
    response, _ = fetch(http, method, path)
    return response.status_code == 200


# -- requests and their failures ---------------------------------------------------------------------------


def request_json(http: httpx.Client, method: str, path: str, body: Mapping[str, Any]) -> Any:
    """Send a body, and return the answer's JSON; raise `ServerFailed` with a one-line reason."""
    where = f"{method} {path}"
    response, text = fetch(http, method, path, body)
    _demand_ok(response, where, text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = cut(" ".join(text.decode(errors="replace").split()))
        raise ServerFailed(f"{where} answered {shown!r}, which is no JSON") from error


def fetch(
    http: httpx.Client, method: str, path: str, body: Mapping[str, Any] | None = None
) -> tuple[httpx.Response, bytes]:
    """Return the status and body of an answer, within bounds of length and time.

    The client's timeout is that of each read, which a server that sends a byte at a time always meets. So the
    body as a whole has it, too.
    """
    where, text = f"{method} {path}", bytearray()
    limit = http.timeout.read
    with _failures(where), http.stream(method, path, json=body) as response:
        end = None if limit is None else time.monotonic() + limit
        for piece in response.iter_bytes():
            text += piece
            if len(text) > _BODY_MOST:
                raise ServerFailed(f"{where} answered more than {_BODY_MOST} bytes")
            if end is not None and time.monotonic() > end:
                raise httpx.ReadTimeout("the answer did not end")
    return response, bytes(text)


def _demand_ok(response: httpx.Response, where: str, body: bytes | None = None) -> None:
    status = response.status_code
    if status == 200:
        return
    text = (response.content if body is None else body).decode(errors="replace")
    told = cut(" ".join(text.split()))
    if status in (401, 403):
        raise NotServed(f"{where} answered {status}: the server wants a key; set {AUTHORIZATION}")
    if 300 <= status < 400:
        location = response.headers.get("location", "nowhere")
        raise NotServed(f"{where} answered {status}, to {cut(location)!r}; name that address if it is meant")
    failed = ServerFailed(f"{where} answered {status}: {told!r}")
    failed.status = status
    raise failed


@contextmanager
def _failures(where: str) -> Iterator[None]:
    """Turn errors of httpx into `ServerFailed` with one line."""
    try:
        yield
    except httpx.ConnectError as error:
        raise ServerFailed(f"{where}: no answer from this address: {error}") from error
    except httpx.TimeoutException as error:
        raise ServerFailed(f"{where}: no answer in time (--timeout)") from error
    except httpx.RemoteProtocolError as error:
        raise ServerFailed(f"{where}: the connection ended in the middle of the answer: {error}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerFailed(f"{where}: {type(error).__name__}: {error}") from error


# -- values ------------------------------------------------------------------------------------------------


def _count(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count of tokens")
    return value


def _ids(values: Any) -> list[Token]:
    if not all(isinstance(value, int) for value in values):
        raise ValueError("token ids are whole numbers")
    return [*values]


def _texts(values: Any) -> list[Token]:
    return [str(value) for value in values]


def _sorted(pairs: Any) -> tuple[tuple[Token, float], ...]:
    """Return log-probabilities, best first, without NaN and without tokens of zero probability."""
    kept = [
        (token, float(value))
        for token, value in pairs
        if value is not None and math.isfinite(value) and value > _IMPOSSIBLE
    ]
    return tuple(sorted(kept, key=lambda it: -it[1]))


def _is_sure(told: Sequence[tuple[int, Any]], tokens: Sequence[Token]) -> bool:
    """Tell whether entries match tokens in order in only one way, as far as the first entry goes."""
    rest = [*itertools.islice(tokens, 1, None)]
    wanted = [entry[0] for entry in told]
    # If all entries also fit behind this token, nobody knows whose the first one is.
    place = 0
    for token in rest:
        if place < len(wanted) and wanted[place] == token:
            place += 1
    return place < len(wanted)


_LINE = re.compile(r"^(?:vllm|pymllm|sglang|llamacpp):(\w+)(?:\{[^}]*\})? +(\S+)", flags=re.MULTILINE)
_MEANS = {
    "running": ("num_requests_running", "num_running_reqs", "requests_processing"),
    "waiting": ("num_requests_waiting", "num_queue_reqs", "requests_deferred"),
    "memory": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "finished": ("request_success_total",),
}
_SUMS = {"prompt_tokens": "prompt_tokens_total", "generated": "generation_tokens_total"}


def read_figures(text: str) -> Figures:
    """Return the figures in Prometheus text; lines of one name, such as one per engine, are summed."""
    sums: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    found = {key: next((sums[name] for name in names if name in sums), None) for key, names in _MEANS.items()}
    # llama.cpp counts prompt tokens that it computes; cached ones have a line of their own in late releases.
    if "llamacpp:" not in text:
        found |= {key: sums.get(name) for key, name in _SUMS.items()}
    return Figures(**found)
