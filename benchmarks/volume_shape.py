"""Shape of the trajectory that :mod:`.volume` measures.

Its turns, and the tokens of a turn and of an answer.
"""

TURNS, GROWTH, ANSWER = 30, 1000, 300
