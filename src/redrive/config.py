from msgspec import Struct
class Settings(Struct):
    url: str = "sqlite:///redrive.db"
    lease_s: float = 30.0
    grace_s: float = 30.0
def settings() -> Settings:
    return Settings()
