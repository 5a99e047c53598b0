"""The trajectory that :mod:`.volume` measures: its turns, tokens that each adds, those of an answer."""

TURNS, GROWTH, ANSWER = 30, 1000, 300
