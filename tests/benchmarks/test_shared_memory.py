"""Which side of the limit an estimate puts candidates on."""

from __future__ import annotations

from mcfuser.codegen.cuda.pool import Compilers
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.space.plan import footprint
from shared_memory import WIDE, Sized, draw, measure, sides
from workloads import PAPER

H200 = CATALOGUE["nvidia/h200"]


def test_sides_are_counted() -> None:
    limit = H200.fast
    sized = [
        Sized("G1", limit, limit, limit),
        Sized("G1", limit, 2 * limit, 2 * limit),
        Sized("G1", 2 * limit, limit, limit),
        Sized("G1", 2 * limit, limit, 2 * limit),
    ]
    equation, estimate = sides(sized, H200)
    assert (equation.right, equation.kept, equation.lost) == (0.5, 0.25, 0.25)
    assert (estimate.right, estimate.kept, estimate.lost) == (0.75, 0.25, 0.0)


def test_as_many_of_each_workload_are_drawn_and_the_same_for_a_seed() -> None:
    some = {n: PAPER[n] for n in ("G1", "G4")}
    chosen = draw(some, H200, 20, 3)
    assert [name for name, _, _ in chosen].count("G1") == 10
    assert [c for _, _, c in chosen] == [c for _, _, c in draw(some, H200, 20, 3)]
    assert [c for _, _, c in chosen] != [c for _, _, c in draw(some, H200, 20, 4)]
    for _, every, candidate in chosen:
        plan, tiles = every.plan(candidate)
        row = every.rows[:1, 1:-1].copy()
        row[0] = list(tiles.values())
        assert footprint(plan, row)[0] <= 1.2 * WIDE * H200.fast


def test_estimates_stand_beside_what_is_allocated() -> None:
    device = CATALOGUE["nvidia/a100"]
    chosen = draw({n: PAPER[n] for n in ("G1", "S7")}, device, 4, 0)
    with Compilers(2) as compilers:
        sized, failed = measure(chosen, device, compilers, lambda done, total: None)
    assert len(sized) + failed == 4
    assert all(s.allocated > 0 and s.estimate > 0 and s.equation > 0 for s in sized)
