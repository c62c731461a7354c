"""What can be said of a model and its gradients: numbers first, their words beside them."""
