"""The settings of launch.serve: a model, how it decodes, and what clients may ask for."""

import dataclasses
from typing import Annotated, Literal

from msgspec import Meta

from pasta_jax.decode.settings import DecodeConfig, RequestSettings, Room
from pasta_jax.files.validated import AboveZero, Count, Positive
from pasta_jax.models.settings import MeshSettings
from pasta_jax.runs.ray import RaySettings
from pasta_jax.weights.settings import ModelSource


@dataclasses.dataclass(frozen=True)
class Limits:
    """What clients may ask for, and for how long."""

    body_bytes: Positive = 1 << 18  # of a request; longer ones are refused with 413
    body_s: AboveZero = 20.0  # for a request's body to arrive
    connections: Positive = 256  # open at a time; further ones are closed at once
    head_s: AboveZero = 20.0  # for a request's head to arrive; then its connection is closed
    stall_s: AboveZero = 60.0  # for a client that stops reading; then its connection is closed
    queue: Count = 64  # requests that wait for a lane; further ones are refused with 429
    automaton_states: Annotated[int, Meta(ge=256, le=8192)] = 2048  # of an answer with a schema
    automaton_masks: Annotated[int, Meta(ge=64, le=1024)] = 256  # likewise, of 19 KB each for each lane and 152k ids
    choices: Positive = 8  # answers to one prompt, `n`
    answer_s: AboveZero = 300.0  # for an answer, waiting included; then it ends where it is
    drain_s: AboveZero = 60.0  # for the answers that run when the server is told to stop

    @property
    def room(self) -> Room:
        """Of automata."""
        return Room(self.automaton_states, self.automaton_masks)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """More replicas while requests wait, fewer while fewer would do."""

    most: Annotated[int, Meta(ge=0, le=256)] = 0  # replicas; 0: always `config.replicas` of them
    grow_s: AboveZero = 5.0  # one more when requests have waited for so long
    shrink_s: AboveZero = 120.0  # one fewer when half the lanes of the others would have done for so long


@dataclasses.dataclass(frozen=True)
class ServeSettings:
    """One model over HTTP."""

    model: ModelSource = ModelSource("smollm2_135m")
    name: str = ""  # of the model, for clients; empty: the model's own
    adapters: tuple[str, ...] = ()  # beside the model, each name=path; a request names one as the model `name:adapter`
    host: str = "127.0.0.1"  # address to listen at; 0.0.0.0: all of this machine's
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000  # 0: any free one
    hosts: tuple[str, ...] = ()  # names under which a proxy on this machine serves it, as chat.example.com; empty: none
    origins: tuple[str, ...] = ()  # of other pages that may call the API, as http://localhost:3000; empty: none
    key_variable: str = ""  # environment variable with the key that clients must send; empty: none
    # Packed, so that one client doesn't pay for the rows of all lanes; 6, since answers often have five threads.
    decoding: DecodeConfig = DecodeConfig(lanes=4, rows=8, slots=2048, packed=(1, 2, 4, 6, 8, 16))
    request: RequestSettings = RequestSettings(max_tokens=400)  # what a client's fields change
    mesh: MeshSettings = MeshSettings()
    replicas: Annotated[int, Meta(ge=1, le=256)] = 1  # servers behind this address, each a process; several need Ray
    scaling: Scaling = Scaling()
    ray: RaySettings = RaySettings()  # the cluster, and what each of several replicas takes; workers, retries: unused
    stream_steps: Positive = 4  # steps between two reads of the device while somebody streams
    batch_steps: Positive = 32  # otherwise; also the longest that a new request waits for a free lane
    share_prompts: bool = True  # False: usage and timing tell no client whether another sent the same prompt
    warm_up: bool = True  # compile for prompts of all lengths before the first request
    log: bool = True  # a line for each response, with nothing of its content
    log_format: Literal["text", "json"] = "text"  # of these lines; json: also tokens, adapter, forks, first token
    spans: str = ""  # OpenTelemetry's collector, as http://localhost:4318/v1/traces; empty: none
    limits: Limits = Limits()

    @property
    def most_replicas(self) -> int:
        """At a time."""
        return max(self.replicas, self.scaling.most)
