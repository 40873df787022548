"""Integrations: `django` (tasks), `starlette` (a worker inside FastAPI or Starlette), `celery` (its producers).

A module that needs a framework imports it; no other module of redrive does.
"""
