"""Counts of rollouts that never reach a batch, carried from the agent-loop workers to the trainer.

veRL hears nothing of a rollout that returned no output. TransferQueue, which both sides use anyway, keeps one tag for
each in a partition of its own until the trainer's next sample; veRL reads its own two partitions only.
"""

from __future__ import annotations

from collections.abc import Collection

import transfer_queue as tq

PARTITION = "left_out"


async def record(uid: str, session_id: int, reason: str) -> None:
    """Note that rollout ``session_id`` of prompt ``uid`` was left out."""
    await tq.async_kv_put(
        key=f"{uid}_{session_id}", partition_id=PARTITION, tag={"status": "left_out", "uid": uid, "reason": reason}
    )


def take(uids: Collection[str] | None = None) -> list[str]:
    """Return the reasons noted since the last call and forget them; with ``uids`` only those of these prompts."""
    noted = (tq.kv_list(PARTITION) or {}).get(PARTITION, {})
    taken = {key: tag["reason"] for key, tag in noted.items() if uids is None or tag["uid"] in uids}
    if taken:
        tq.kv_clear(keys=list(taken), partition_id=PARTITION)
    return list(taken.values())
