"""Sends requests at and over each limit of a service, and judges the answers."""
