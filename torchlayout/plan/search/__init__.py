"""The best layouts of a question, why others are not, and how the answer is told."""
