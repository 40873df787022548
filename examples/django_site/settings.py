"""A Django site whose tasks run on redrive. Beside this file:

DJANGO_SETTINGS_MODULE=settings python -m django runserver
DJANGO_SETTINGS_MODULE=settings redrive worker redrive.contrib.django:app
"""

SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "mail.urls"
INSTALLED_APPS = ["mail"]
USE_TZ = True

TASKS = {
    "default": {
        "BACKEND": "redrive.contrib.django.RedriveBackend",
        "OPTIONS": {"url": "sqlite:///work.db", "keep_result": "1h"},
    }
}
