"""Which test file looks at which module: the one of the same path, or the one of a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import PACKAGES, ROOT

# By the test file that looks at them: modules that have none, as they are paths in their package.
THROUGH: dict[str, str] = {
    # kernels as a whole are run against the chain's meaning, whichever file writes a line of them
    "codegen/tensorir/test_function.py": """
        codegen/tensorir/build codegen/tensorir/operands
        codegen/tensorir/parameters codegen/tensorir/passes codegen/tensorir/product
        codegen/tensorir/right codegen/tensorir/scalar codegen/tensorir/scratch
        codegen/tensorir/source codegen/tensorir/iterations codegen/tensorir/writer""",
    "codegen/triton/test_function.py": """
        codegen/triton/compute codegen/triton/frame codegen/triton/loop codegen/triton/memory
        codegen/triton/pointers codegen/triton/position codegen/triton/power codegen/triton/source
        codegen/triton/statement codegen/triton/tile""",
    "codegen/cuda/test_together.py": "codegen/bindings",
    "codegen/cuda/test_workspaces.py": "codegen/cuda/root",
    "graph/test_joined.py": "graph/joins",
    "tune/test_listers.py": "tune/lister",
    "codegen/cuda/test_recurrence_source.py": "codegen/cuda/recurrence_product",
    "codegen/llvm/test_recurrence.py": "codegen/call codegen/recurrences",
    "codegen/triton/test_interpreted.py": "codegen/triton/rounded",
    "codegen/triton/test_split.py": "codegen/triton/combine",
    "codegen/triton/hopper/test_groups.py": """
        codegen/triton/hopper/gluon codegen/triton/hopper/specialised
        codegen/triton/hopper/warpgroup lowering/triton/hopper/groups
        lowering/triton/hopper/rings""",
    "codegen/triton/hopper/test_tensor_map.py": "lowering/triton/hopper/tensor_map",
    # facts are the same for one schedule and for a plan's candidates
    "lowering/triton/test_facts.py": """
        lowering/triton/layout lowering/triton/planned lowering/triton/products
        lowering/triton/instructions""",
    "lowering/test_deferred.py": "lowering/uses",
    "codegen/test_record.py": "codegen/tensorir/record codegen/triton/record",
    # models as a whole are imported, cut, compiled and run
    "graph/test_partition.py": "graph/leftover graph/regions graph/selection",
    "graph/rewrite/test_loop.py": "graph/rewrite/inner",
    "graph/test_lift.py": """
        graph/attempt graph/condition graph/draft graph/multiply graph/reduce""",
    "graph/test_convolution.py": "graph/sliding graph/window",
    "graph/test_concatenation.py": "graph/parted",
    "graph/test_role.py": "graph/known",
    "graph/test_inplace.py": "graph/replaced",
    # rules and facts are run beside the model: a bucket gives its results or is refused
    "graph/dynamic/test_analysis.py": """
        graph/dynamic/bucket graph/dynamic/facts graph/dynamic/layout graph/dynamic/length
        graph/dynamic/node graph/dynamic/padded graph/dynamic/rules/elementwise
        graph/dynamic/rules/movement graph/dynamic/rules/products
        graph/dynamic/rules/reductions graph/dynamic/rules/views graph/dynamic/rules/windows""",
    "graph/dynamic/test_found.py": """
        graph/decided graph/suppression graph/dynamic/difference graph/dynamic/rules/decided""",
    "codegen/llvm/test_suppress.py": "chain/suppression codegen/suppressions",
    "graph/dynamic/test_recurrent.py": "graph/dynamic/rules/recurrent",
    "graph/dynamic/test_refusals.py": "graph/dynamic/rules/table",
    "graph/dynamic/test_buckets.py": "graph/dynamic/describe graph/dynamic/verify",
    "graph/test_check.py": "graph/running measure/tolerance",
    "test_bisect.py": "graph/intermediate",
    "test_compile.py": "build compiled_report",
    "test_decide.py": "whole",
    "graph/test_archive.py": "graph/delivery",
    "graph/test_external.py": "graph/tensors graph/weights",
    "graph/test_fold.py": "graph/constants graph/evaluate",
    "graph/rewrite/test_apply.py": "graph/rewrite/body graph/rewrite/known graph/rewrite/table",
    "graph/rewrite/test_attention.py": "graph/rewrite/scores",
    "graph/test_limits.py": """
        graph/calls graph/inspection graph/messages graph/read graph/refusal graph/sizes
        graph/wire""",
    "chain/test_chain.py": """
        chain/document chain/forms chain/matrix_product chain/roles chain/values""",
    "chain/test_cut.py": "chain/part",
    "space/test_place.py": "space/statement",
    "backends/cuda/test_candidates.py": "lowering/triton/knobs",
    "model/test_fitted.py": "model/groups  ",
    "tune/test_recall.py": "tune/tuned",
    "tune/test_related.py": "db/relatives",
    "tune/test_tuner.py": "tune/tuning",
    # processes that others start, and what only they load
    "measure/test_worker.py": "backends/cpu/runner",
    "measure/test_child.py": "measure/runner",
    "backends/test_backends.py": """
        backends/cpu/backend backends/cpu/builder backends/cuda/backend lowering/tensorir/knobs""",
    "tune/test_key.py": "backends/versions",
    "process/test_supervised.py": "process/birth process/limits process/seccomp",
    "graph/test_assemble.py": "codegen/llvm/module codegen/llvm/rest",
    "space/test_ends.py": "space/past",
    "service/test_worker.py": "service/worker_child",
    "cli/test_command.py": """
        cli/batch cli/bisect cli/explain cli/serve cli/space""",
    "backends/cuda/test_runner.py": """
        backends/cuda/driver   backends/cuda/timing""",
    "codegen/cuda/test_pool.py": "codegen/cuda/compile_server",
    "process/test_confined.py": "process/confinement",
    "runtime/test_capture.py": "runtime/runner",
    "service/test_compilation.py": "service/compile_child service/compiler service/claim",
    "service/test_inspect.py": "service/inspect_child service/problems",
    "service/test_importing.py": "service/import_child",
    "service/test_explaining.py": "service/here_child",
    "service/oci/test_transfer.py": "service/oci/registry service/oci/transfer_child",
    "service/test_kept.py": "service/refresh_child",
    "cli/test_cache_exchange.py": "service/export",
    # commands and the service, asked as a user asks them
    "batch/test_batch.py": """
        batch/outcome batch/results batch/run batch/state
        batch/summary""",
    "batch/test_zoo.py": "batch/entry",
    "batch/test_server.py": "batch/address",
    "service/test_app.py": """
        service/body service/etag service/hosts service/http service/jobs service/kernels
        service/lookup service/posting service/queries""",
    "service/test_openapi.py": "service/documents",
    "service/test_schemas.py": "service/work",
    "service/test_access.py": "service/owners",
    "service/test_serve.py": "service/supervisor service/room service/running",
    "service/test_outage.py": "service/opening service/waiting service/beating service/background",
    "db/test_store.py": """
        db/again db/claims db/database db/jobs db/keyed db/models db/orders db/paging db/private
        db/tallies db/transitions""",
    "db/test_migrations.py": "db/engine",
    "test_expr.py": "errors",
    "cli/test_documents.py": "finite",
}
ELSEWHERE = {module: test for test, modules in THROUGH.items() for module in modules.split()}


def modules() -> Iterator[str]:
    """Every module's path: its room, and its path in that."""
    for name, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            room = name.removeprefix("mcfuser").removeprefix("_")
            inside = Path(room) / path.relative_to(folder)
            if path.stem not in ("__init__", "__main__") and "migrations" not in inside.parts:
                yield inside.with_suffix("").as_posix()


def mirror(module: str) -> Path:
    path = Path(module)
    return ROOT / "tests" / path.parent / f"test_{path.name}.py"
