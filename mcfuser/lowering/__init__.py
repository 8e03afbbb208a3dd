"""What a back end makes of a schedule, before a line of source is written: facts, each with one
definition, which the models and the code generators share."""
