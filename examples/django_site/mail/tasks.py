try:
    from django.tasks import task
except ImportError:  # Django before 6.0: the same interface, from the package django-tasks
    from django_tasks import task


@task(retry="emails", timeout="30s")
def welcome(to: str) -> str:
    print(f"welcome, {to}", flush=True)
    return f"sent to {to}"
