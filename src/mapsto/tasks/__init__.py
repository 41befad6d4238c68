"""The verbs as plain functions: check, train, evaluate, predict, show, config, doctor, demo."""
