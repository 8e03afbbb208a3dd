"""What is refused at the door, without TVM."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import onnx
import pytest
from onnx import TensorProto

from mcfuser.errors import InputError, ModelError
from mcfuser.graph.inspection import inspect
from mcfuser_service.inspect import Inspector
from mcfuser_service.problems import ProblemError
from mcfuser_service.settings import ServiceSettings
from tests.support.archives import zipped
from tests.support.models import model
from tests.support.paths import FIXTURES, PYTHONPATH


def external() -> bytes:
    proto = onnx.load_model_from_string(model())
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/passwd")
    return proto.SerializeToString()


@pytest.mark.parametrize(
    ("given", "shapes"),
    [(model(), {}), (model(rows="n"), {"x": (2, 4)}), (model("FusedMatMul", "com.microsoft"), {})],
)
def test_good_models_pass(given: bytes, shapes: dict[str, tuple[int, ...]]) -> None:
    inspect(given, shapes)


@pytest.mark.parametrize(
    ("given", "shapes", "words"),
    [
        (b"", {}, "empty"),
        (b"hello, world", {}, "not ONNX"),
        (model()[:-20], {}, "truncated"),
        (model("Wish"), {}, "operator 'Wish' .*'the_node'"),
        (model("Wish", "acme"), {}, "operator 'Wish' .*'acme'.*'the_node'"),
        (model(rows="n"), {}, "'n' of input 'x'.*--shape x="),
        (model(rows=0), {}, "extent 0"),
        (model(), {"z": (1,)}, "'z'"),
        (model(), {"x": (9, 9)}, "extent 9"),
        (external(), {}, "external file '../../etc/passwd'"),
    ],
)
def test_bad_models_are_refused_in_one_sentence(
    given: bytes, shapes: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(InputError, match=words) as caught:
        inspect(given, shapes)
    assert "\n" not in str(caught.value)


def test_the_web_process_loads_no_compiler_and_no_reader_of_models() -> None:
    heavy = ("tvm", "triton", "sympy", "onnxruntime", "torch", "onnx", "google.protobuf")
    code = f"import sys, mcfuser_service.serve; print([m for m in {heavy!r} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


class TestInspector:
    """The web process's side, with work that fails in known manners."""

    @pytest.fixture(autouse=True)
    def importable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", PYTHONPATH)

    def inspector(
        self, folder: Path, module: str = "tests.support.inspect_work", **given: Any
    ) -> Inspector:
        return Inspector(ServiceSettings(data=folder, **given), module)

    def file(self, folder: Path, content: bytes | str) -> Path:
        path = folder / hashlib.sha256(str(content).encode()).hexdigest()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def test_a_model_passes_or_is_refused_in_the_child_s_words(self, tmp_path: Path) -> None:
        inspector = self.inspector(tmp_path, "mcfuser_service.inspect_child", max_nodes=1)
        good = self.file(tmp_path, model(rows="n"))
        anyio.run(inspector, good, {"x": (2, 4)})
        with pytest.raises(ModelError, match="'n' of input 'x' is dynamic"):
            anyio.run(inspector, good, {})
        proto = onnx.load_model_from_string(model())
        proto.graph.node.add().CopyFrom(proto.graph.node[0])
        with pytest.raises(ModelError, match=r"2 nodes; the limit is 1.*MCFUSER_MAX_NODES"):
            anyio.run(inspector, self.file(tmp_path, proto.SerializeToString()), {})

    def test_an_archive_is_unpacked_in_the_child(self, tmp_path: Path) -> None:
        inspector = self.inspector(
            tmp_path, "mcfuser_service.inspect_child", max_unpacked_bytes=10**6
        )
        files = {p.name: p.read_bytes() for p in (FIXTURES / "external").iterdir()}
        anyio.run(inspector, self.file(tmp_path, zipped(files)), {})
        with pytest.raises(
            ModelError, match=r"'linear.onnx.data', which is not in the model's folder"
        ):
            anyio.run(inspector, self.file(tmp_path, zipped({"m.onnx": files["linear.onnx"]})), {})
        with pytest.raises(
            ModelError, match=r"'linear.onnx.data', which did not come .* zip or tar"
        ):
            anyio.run(inspector, self.file(tmp_path, files["linear.onnx"]), {})
        bomb = zipped({**files, "zeros": bytes(10**6)})
        with pytest.raises(ModelError, match=r"limit is 1000000.*MCFUSER_MAX_UNPACKED_BYTES"):
            anyio.run(inspector, self.file(tmp_path, bomb), {})

    @pytest.mark.parametrize(
        ("work", "words"),
        [
            ("die", "signal SIGABRT"),
            ("spin", "more than.*MCFUSER_INSPECT_SECONDS"),
            ("eat", "memory.*MCFUSER_INSPECT_MEMORY"),
        ],
    )
    def test_what_ends_a_child_is_said(self, tmp_path: Path, work: str, words: str) -> None:
        inspector = self.inspector(tmp_path, inspect_seconds=1 if work == "spin" else 60)
        with pytest.raises(ModelError, match=words) as caught:
            self.patiently(inspector, self.file(tmp_path, work))
        assert "\n" not in str(caught.value)

    def patiently(self, inspector: Inspector, path: Path) -> None:
        """Asks again while the machine is busy."""
        for _ in range(60):
            try:
                return anyio.run(inspector, path, {})
            except ProblemError as error:
                assert error.details["type"].endswith(":busy")
        pytest.fail("the machine was busy sixty times over")

    def test_a_model_that_was_not_looked_at_in_time_is_not_to_blame(self, tmp_path: Path) -> None:
        inspector = self.inspector(tmp_path, inspect_seconds=1)
        with pytest.raises(ProblemError, match="post it again") as caught:
            anyio.run(inspector, self.file(tmp_path, "hang"), {})
        assert caught.value.details["status"] == 429
        assert int(caught.value.headers["Retry-After"]) > 0

    def test_so_many_at_a_time_and_the_loop_goes_on(self, tmp_path: Path) -> None:
        inspector = self.inspector(tmp_path, inspections=2, inspect_wait=600, inspect_seconds=600)
        files = [self.file(tmp_path, f"meet {tmp_path} {i}") for i in range(7)]
        iterations = 0

        async def post(file: Path) -> None:
            await inspector(file, {})

        async def serve(scope: anyio.CancelScope) -> None:
            nonlocal iterations
            while not scope.cancel_called:
                await anyio.sleep(0.01)
                iterations += 1

        async def all_at_once() -> None:
            async with anyio.create_task_group() as around:
                around.start_soon(serve, around.cancel_scope)
                async with anyio.create_task_group() as posts:
                    for file in files:
                        posts.start_soon(post, file)
                around.cancel_scope.cancel()

        anyio.run(all_at_once)
        met = [int(path.suffixes[0][1:]) for path in tmp_path.glob("*.met")]
        assert len(met) == 7 and max(met) <= 2
        assert iterations > 7

    @pytest.mark.thorough
    def test_who_waits_too_long_is_told_to_come_again(self, tmp_path: Path) -> None:
        inspector = self.inspector(tmp_path, inspections=1, inspect_wait=0.05, inspect_seconds=3)
        hang = self.file(tmp_path, "hang")

        async def first() -> None:
            busy = "longer than 3 s|on a busy machine"
            with pytest.raises((ModelError, ProblemError), match=busy):
                await inspector(hang, {})

        async def both() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(first)
                await anyio.sleep(0)
                with pytest.raises(ProblemError) as caught:
                    await inspector(hang, {})
                assert caught.value.details["status"] == 429
                assert "Retry-After" in caught.value.headers

        anyio.run(both)
