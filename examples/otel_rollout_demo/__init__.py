"""Run a small but real agentic-RL rollout on Ray: ``otel-rollout demo``.

Read ``cli.py`` first (configure, roll out, shut down), then ``worker.py`` (one trajectory) and
``agent_loop.py`` (its turns). The other modules are what a training framework provides: dataset, tokenizer,
tools, reward, server.
"""
