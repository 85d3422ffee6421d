"""How much memory a graph needs: lifetimes of its values, planners that lay them out, and a report."""
