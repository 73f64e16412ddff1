"""A real Jupyter kernel to run cells in, as a notebook would: text that was printed, and errors as they are shown."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from jupyter_client.manager import KernelManager

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Reply:
    """What one cell gave: printed text, the error's name and message, the traceback as shown, seconds."""

    text: str = ""
    error: str | None = None
    message: str = ""
    shown: str = ""
    seconds: float = 0.0
    data: list[dict] = field(default_factory=list)


class Kernel:
    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def start(self, source: str) -> str:
        """Send a cell without waiting for it; its message id."""
        return self.client.execute(source)

    def run(self, source: str, limit: float = 60) -> Reply:
        return self.finish(self.start(source), limit)

    def finish(self, message_id: str, limit: float = 60) -> Reply:
        """Collect what the cell gives, until it is idle. Raises TimeoutError after `limit` seconds."""
        reply, start = Reply(), time.monotonic()
        while True:
            left = limit - (time.monotonic() - start)
            if left <= 0:
                raise TimeoutError(f"the cell did not end within {limit} s; so far: {reply.text!r}")
            message = self.next_message(min(left, 1.0))
            if message is None or message["parent_header"].get("msg_id") != message_id:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                reply.seconds = time.monotonic() - start
                return reply
            _take(reply, message["msg_type"], message["content"])

    def wait_until_started(self, message_id: str, limit: float = 60) -> None:
        """Returns when the kernel has begun to run the cell. What it gave by then is not collected."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            message = self.next_message(1.0)
            is_ours = message is not None and message["parent_header"].get("msg_id") == message_id
            if is_ours and message["msg_type"] == "execute_input":
                return
        raise TimeoutError(f"the cell did not begin within {limit} s")

    def next_message(self, limit: float) -> dict | None:
        from queue import Empty

        try:
            return self.client.get_iopub_msg(timeout=limit)
        except Empty:
            return None

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _take(reply: Reply, kind: str, content: dict) -> None:
    if kind == "stream":
        reply.text += content["text"]
    elif kind in ("execute_result", "display_data"):
        reply.data.append(content["data"])
        reply.text += content["data"].get("text/plain", "")
    elif kind == "error":
        reply.error, reply.message = content["ename"], content["evalue"]
        reply.shown = _COLOUR.sub("", "\n".join(content["traceback"]))
