"""A small but real agentic-RL rollout on Ray, traced with otel-rollout: what ``otel-rollout demo`` runs.

Read ``cli.py`` first (configure, roll out, shut down), then ``worker.py`` (one trajectory) and
``agent_loop.py`` (its turns). Everything else is what a training framework brings along: dataset,
tokenizer, tools, reward, server.
"""
