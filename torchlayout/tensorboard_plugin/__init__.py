"""The Layouts tab of TensorBoard: runs side by side, and where the steps of each went."""
