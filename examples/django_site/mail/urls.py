from django.http import HttpRequest, JsonResponse
from django.urls import path

from .tasks import welcome


def sign_up(request: HttpRequest) -> JsonResponse:
    result = welcome.enqueue(request.GET["email"])
    return JsonResponse({"job": result.id}, status=202)


def job(request: HttpRequest, id: str) -> JsonResponse:
    result = welcome.get_result(id)
    return JsonResponse(
        {"status": result.status, "value": result.return_value if result.status == "SUCCESSFUL" else None}
    )


urlpatterns = [path("people", sign_up), path("jobs/<id>", job)]
