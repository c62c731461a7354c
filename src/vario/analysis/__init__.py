"""Analysis of a model and its gradients without a run."""
