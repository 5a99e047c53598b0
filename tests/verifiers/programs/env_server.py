"""Serve the environment of the tests, as prime-rl's orchestrator has it served.

Arguments: a file that gets the server's address.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from verifiers.v1.envs.single_agent import SingleAgentEnvConfig
from verifiers.v1.serve.server import EnvServer


def main(address_file: str) -> None:
    """Serve until the process is killed."""
    seat = {"runtime": {"type": "subprocess"}}
    config = SingleAgentEnvConfig.model_validate(
        {"taskset": {"id": "sums-v1", "prompts": "no tool|model hangs"}, "agent": seat}
    )
    server = EnvServer(config=config, address="tcp://127.0.0.1:0")
    ready = Path(address_file)
    ready.with_suffix(".part").write_text(server.address)
    ready.with_suffix(".part").rename(ready)
    asyncio.run(server.run())


if __name__ == "__main__":
    main(sys.argv[1])
