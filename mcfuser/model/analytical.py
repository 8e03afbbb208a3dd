"""The paper's model: MCFuser equations (2) to (5), over arrays of tile sizes."""

from __future__ import annotations

from mcfuser.device import Device
from mcfuser.space.plan import Floats, Ints, Plan, blocks, traffic, work


def estimate(plan: Plan, tiles: Ints, device: Device) -> Floats:
    """Seconds for each row of `tiles` [candidates, axes] (eq. 2).

    t = (t_mem + t_comp) * alpha, with bytes over the bandwidth W (eq. 3), flops over the
    throughput P (eq. 4), and alpha = (N_block + N_SM) / N_block (eq. 5).
    """
    t_mem = traffic(plan, tiles) / device.bandwidth
    t_comp = work(plan, tiles) / device.throughput(storage(plan))
    n_block = blocks(plan, tiles)
    alpha = (n_block + device.units) / n_block
    result: Floats = (t_mem + t_comp) * alpha
    return result


def storage(plan: Plan) -> str:
    """The type that the chain's products read: that of its first input; without any, output."""
    chain = plan.program.chain
    return chain.tensor((*chain.inputs, *chain.outputs)[0]).dtype
