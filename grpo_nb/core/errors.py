"""The errors that several rooms raise; what each means to the person who reads it."""


class EnvironmentProblem(RuntimeError):
    """This machine or its installation is in the way: what, why, and what to type next."""
