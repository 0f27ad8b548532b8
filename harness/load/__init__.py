"""The load path: streaming client, Locust user, shape, recorder."""
