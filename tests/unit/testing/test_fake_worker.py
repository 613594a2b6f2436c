from __future__ import annotations

import json
import socket
import subprocess
import sys

import msgspec
import pytest

from luce.protocol import messages as wire
from luce.protocol.frames import encode_frame, listener_decoder, read_batches
from luce.protocol.sampling import GrammarSpec, SamplingParams, TokenLogprobs
from luce.testing.byte_tokenizer import ByteTokenizer, pack_prompt, unpack_prompt
from luce.testing.fake_script import FakeScript, PromptReply
from luce.testing.fake_worker import FakeWorker

LOAD = wire.Load(wire.LoadSpec(name="m", path="m"))


class Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(60)
        self._batches = read_batches(sock, listener_decoder())
        self._early: list[wire.ToListener] = []

    def send(self, *messages: wire.ToWorker) -> None:
        self.sock.sendall(b"".join(encode_frame(message) for message in messages))

    def submit(self, request_id: str, prompt=(65, 66), max_tokens: int = 9) -> None:
        sampling = SamplingParams(max_tokens=max_tokens)
        self.send(wire.Submit(request_id, pack_prompt(prompt), sampling))

    def next(self) -> wire.ToListener:
        while not self._early:
            self._early = next(self._batches)
        return self._early.pop(0)

    def until(self, kind: type) -> wire.ToListener:
        while not isinstance(message := self.next(), kind):
            pass
        return message

    def rest(self) -> list[wire.ToListener]:
        return self._early + [message for batch in self._batches for message in batch]


@pytest.fixture
def start():
    workers: list[FakeWorker] = []
    peers: list[Peer] = []

    def start(**script) -> tuple[FakeWorker, Peer]:
        worker = FakeWorker(FakeScript(**script))
        peer = Peer(worker.connect())
        workers.append(worker)
        peers.append(peer)
        peer.send(LOAD)
        return worker, peer

    yield start
    for peer in peers:
        peer.sock.close()
    for worker in workers:
        worker.close()


def test_the_life_of_a_request(start):
    worker, peer = start(cached_tokens=1)
    assert peer.next().version == wire.PROTOCOL_VERSION
    assert isinstance(peer.until(wire.Ready), wire.Ready)
    peer.submit("r")
    assert peer.until(wire.Admitted) == wire.Admitted("r", 1)
    assert peer.until(wire.StepOutput).deltas == [wire.SeqDelta("r", [65])]
    assert peer.until(wire.StepOutput).deltas == [wire.SeqDelta("r", [66], "stop")]
    retired = peer.until(wire.Retired)
    assert worker.retired == [retired]
    assert retired.usage == wire.Usage(prompt_tokens=2, cached_tokens=1, completion_tokens=2)
    assert [type(message) for message in worker.received] == [wire.Load, wire.Submit]
    assert (worker.in_flight, worker.max_in_flight) == (0, 1)


def test_max_tokens_cuts_a_reply_with_length(start):
    _, peer = start(reply=[1, 2, 3, 4], tokens_per_step=2)
    peer.submit("r", max_tokens=3)
    assert peer.until(wire.StepOutput).deltas[0].token_ids == [1, 2]
    assert peer.until(wire.StepOutput).deltas == [wire.SeqDelta("r", [3], "length")]


def test_a_prompt_with_a_scripted_token_gets_the_reply_scripted_for_it(start):
    replies = [PromptReply(token=1, reply=[11]), PromptReply(token=2, reply=[22])]
    _, peer = start(reply=[99], prompt_replies=replies)
    for prompt, answer in (((5, 2), 22), ((2, 1), 11), ((5,), 99)):
        peer.submit("r", prompt)
        (delta,) = peer.until(wire.StepOutput).deltas
        assert list(delta.token_ids) == [answer]
        peer.until(wire.Retired)


@pytest.mark.parametrize("hold_after", [0, 1, 2])
def test_a_held_request_goes_on_when_released(start, hold_after):
    worker, peer = start(hold_after=hold_after)
    peer.submit("r")
    sent = [peer.until(wire.StepOutput).deltas[0].token_ids for _ in range(hold_after)]
    assert sent == [[65], [66]][:hold_after]
    peer.send(wire.Control(1, "check"))
    assert peer.until(wire.ControlDone) == wire.ControlDone(1)
    assert worker.in_flight == 1
    worker.release("other")
    worker.release("r")
    assert peer.until(wire.Retired).finish == "stop"


def test_a_request_can_be_held_twice(start):
    worker, peer = start(hold_after=0, hold_again_after=1)
    peer.submit("r")
    peer.until(wire.Admitted)
    worker.release("r")
    assert peer.until(wire.StepOutput).deltas == [wire.SeqDelta("r", [65])]
    peer.send(wire.Control(1, "check"))
    assert peer.until(wire.ControlDone) == wire.ControlDone(1)
    assert worker.in_flight == 1
    worker.release()
    assert peer.until(wire.StepOutput).deltas == [wire.SeqDelta("r", [66], "stop")]


def test_a_file_lets_held_requests_go_on(start, tmp_path):
    go_on = tmp_path / "go on"
    worker, peer = start(hold_after=1, hold_until_file=str(go_on))
    peer.submit("r")
    assert peer.until(wire.StepOutput).deltas == [wire.SeqDelta("r", [65])]
    peer.send(wire.Control(1, "check"))
    assert peer.until(wire.ControlDone) == wire.ControlDone(1)
    assert worker.in_flight == 1
    go_on.touch()
    assert peer.until(wire.Retired).finish == "stop"
    peer.submit("s")
    assert peer.until(wire.Retired).finish == "stop"


def test_blocks_and_rows_are_counted(start):
    worker, peer = start(kv_pool_tokens=64, block_tokens=16, hold_after=0)
    peer.submit("a", [1] * 16)
    assert peer.until(wire.Stats).stats.free_blocks == 2
    peer.submit("b", [1] * 17)
    assert peer.until(wire.Refused).reason == "capacity"
    peer.submit("c", [1] * 64)
    assert peer.until(wire.Refused).reason == "never_fits"
    worker.release()
    peer.until(wire.Retired)
    assert peer.until(wire.Stats).stats.free_blocks == 4


def test_growth_takes_blocks_and_gives_them_back(start):
    worker, peer = start(kv_pool_tokens=64, block_tokens=16, reply=[7] * 30, tokens_per_step=30)
    peer.submit("a", [1] * 16, max_tokens=30)
    peer.until(wire.Retired)
    assert peer.until(wire.Stats).stats.free_blocks == 4
    assert worker.retired[0].usage.completion_tokens == 30


def test_scripted_refusals_come_first_and_run_out(start):
    _, peer = start(refuse_next=2, refuse_reason="failed", refuse_error="InternalError")
    for _ in range(2):
        peer.submit("r")
        assert peer.until(wire.Refused) == wire.Refused("r", "failed", "InternalError")
    peer.submit("r")
    assert isinstance(peer.until(wire.Admitted), wire.Admitted)


def test_a_crash_closes_the_socket_after_what_was_sent(start):
    _, peer = start(crash="tokens", crash_tokens=1)
    peer.until(wire.Ready)
    peer.submit("r")
    kinds = [type(message) for message in peer.rest()]
    assert kinds == [wire.Admitted, wire.Stats, wire.StepOutput]


def test_a_crash_on_command_and_a_new_session(start):
    worker, peer = start()
    peer.until(wire.Ready)
    worker.crash()
    assert peer.rest() == []
    with Peer(worker.connect()).sock as sock:
        again = Peer(sock)
        again.send(LOAD)
        assert isinstance(again.until(wire.Ready), wire.Ready)
    assert len(worker.received) == 2


def test_a_load_error_is_a_fatal_fault(start):
    _, peer = start(load_error="PlacementError", load_message="too big.")
    assert peer.until(wire.Fault) == wire.Fault("PlacementError", "too big.", True)
    assert peer.rest() == []


def test_a_stalled_reader_answers_nothing(start):
    worker, peer = start(stall_reading=True)
    peer.until(wire.Ready)
    peer.submit("r")
    peer.sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        peer.next()
    assert len(worker.received) == 1


def test_shutdown_waits_then_cuts(start):
    _, peer = start(hold_after=0)
    peer.submit("r")
    peer.until(wire.Admitted)
    peer.send(wire.Shutdown(0.02))
    retired = peer.until(wire.Retired)
    assert (retired.finish, retired.error) == ("error", "ShuttingDown")
    assert all(isinstance(message, wire.Stats) for message in peer.rest())


def test_closing_does_not_wait_for_a_listener_that_reads_nothing(start):
    worker, peer = start(reply=[1] * 200_000, max_ctx=300_000, kv_pool_tokens=300_000)
    peer.until(wire.Ready)
    peer.submit("r", max_tokens=200_000)
    worker.close()
    assert worker.in_flight <= 1


def test_it_refuses_a_script_it_does_not_know():
    command = [sys.executable, "-m", "luce.testing.fake_worker", "--fd", "0", "--script"]
    script = json.dumps({"colour": "blue"})
    result = subprocess.run([*command, script], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "colour" in result.stderr


def test_scripts_survive_json():
    script = FakeScript(crash="admitted", reply=[1], hold_after=0)
    assert msgspec.json.decode(msgspec.json.encode(script), type=FakeScript) == script


def test_a_worker_must_be_connected_before_it_is_told_anything():
    with pytest.raises(RuntimeError, match="not been connected"):
        FakeWorker().release()


def test_byte_tokens_are_text_and_prompts_round_trip():
    tokenizer = ByteTokenizer()
    text = "héllo €"
    ids = tokenizer.encode(text)
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids[:-1]).endswith("\ufffd")
    assert unpack_prompt(pack_prompt([0, 1, 2**31 - 1, -1])) == [0, 1, 2**31 - 1, -1]


def test_a_late_cancel_holds_its_memory_until_the_next_step(start):
    worker, peer = start(late_cancel=True, hold_after=1)
    peer.submit("r1")
    peer.until(wire.StepOutput)
    peer.send(wire.Cancel("r1", "client_gone"), wire.Control(1, "check"))
    peer.until(wire.ControlDone)
    assert worker.in_flight == 1
    worker.release("r1")
    assert peer.until(wire.Retired).finish == "cancelled"


def test_log_probabilities_come_for_those_who_ask(start):
    _, peer = start(reply=[7, 255], tokens_per_step=2)
    sampling = SamplingParams(max_tokens=9, logprobs=2)
    peer.send(wire.Submit("r", pack_prompt([1]), sampling))
    (delta,) = peer.until(wire.StepOutput).deltas
    assert delta.logprobs == [
        TokenLogprobs(-0.5, (7, 8), (-0.5, -1.5)),
        TokenLogprobs(-0.5, (255, 0), (-0.5, -1.5)),
    ]
    peer.submit("plain")
    assert peer.until(wire.StepOutput).deltas[0].logprobs is None


def test_scripted_log_probabilities(start):
    own = [TokenLogprobs(-1.0), TokenLogprobs(-2.0, (3,), (-0.1,))]
    _, peer = start(reply=[7, 8], logprobs=own)
    sampling = SamplingParams(max_tokens=9, logprobs=1)
    peer.send(wire.Submit("r", pack_prompt([1]), sampling))
    found = [peer.until(wire.StepOutput).deltas[0].logprobs for _ in own]
    assert found == [[each] for each in own]


def test_vocabulary_and_grammar_are_received(start):
    worker, peer = start()
    vocabulary = wire.Vocabulary([b"a"], [], [0])
    sampling = SamplingParams(max_tokens=9, grammar=GrammarSpec("start: /a/"))
    peer.send(vocabulary, wire.Submit("r", pack_prompt([1]), sampling))
    peer.until(wire.Retired)
    assert worker.received[1] == vocabulary
    assert worker.received[2].sampling.grammar == GrammarSpec("start: /a/")
