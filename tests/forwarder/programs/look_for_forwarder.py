"""Look for a node's forwarder 3000 times: ``look_for_forwarder.py NODE``.

Prints ``looking``, and then how often one ran.
"""

import sys
from pathlib import Path

from otel_rollout.record.launch import launcher

if __name__ == "__main__":
    print("looking", flush=True)
    print(sum(launcher.forwarder_runs(Path(sys.argv[1])) for _ in range(3000)))
