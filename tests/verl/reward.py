"""A reward function, in a module of its own: verl loads it from a file."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    correct = f"#### {ground_truth}" in solution_str
    return {"score": 1.0 if correct else 0.0, "acc": correct, "answer": solution_str[-8:].strip()}
