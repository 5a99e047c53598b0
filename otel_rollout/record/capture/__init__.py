"""Code that runs inside user code: it neither raises, blocks nor changes results."""
