"""What a server does before and beside decoding: schemas are read apart, and events are whole to every client."""

import asyncio
import json
import threading
from unittest.mock import patch

import pytest

from pasta_jax.decode.settings import DecodeConfig
from pasta_jax.errors import PastaError
from pasta_jax.serve.delivery import event
from pasta_jax.serve.protocol import Refusal
from pasta_jax.serve.run import opened
from pasta_jax.serve.service import Preparing
from pasta_jax.serve.settings import ServeSettings


def test_schemas_keep_no_other_request_waiting_and_too_many_are_refused():
    async def requests():
        preparing, read = Preparing(3), threading.Event()
        waiting = [asyncio.create_task(preparing(read.wait, 60)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="too many requests of fields wait") as refused:
            preparing.require_room()
        assert refused.value.status == 429
        assert await asyncio.to_thread(lambda: "text") == "text"
        read.set()
        assert all(await asyncio.gather(*waiting))
        preparing.require_room()
        assert await preparing(dict) == {}

    asyncio.run(requests())


def test_an_event_has_one_line_of_data_however_clients_tell_lines():
    text = "a\u2028b\u2029c\x85d"
    line, *rest = event({"text": text}).decode().splitlines()
    assert json.loads(line.removeprefix("data: ")) == {"text": text}
    assert not "".join(rest)


def test_lanes_that_devices_cannot_divide_are_refused():
    with (
        patch("pasta_jax.serve.run.decoding_mesh"),
        patch("pasta_jax.serve.run.sharing_rows", return_value=8),
        pytest.raises(PastaError, match=r"config\.decoding\.lanes=4: 8 devices divide them; set a multiple of 8"),
    ):
        opened(ServeSettings(decoding=DecodeConfig(4, 8)))
